/* Merges trees of several sources; union.py does the same. */
#include "unions.h"

#include "api.h"
#include "likeliest_first.h"

enum { ROOT = -1 };

static int64_t find(const struct pl_tree *in, int64_t parent, int64_t token) {
    for (int64_t i = parent + 1; i < in->nodes; i++)
        if (in->parents[i] == parent && in->tokens[i] == token) return i;
    return in->nodes;
}

static void hear_again(struct pl_union *in, int64_t node, double claim) {
    double known = in->claims[node];
    int64_t heard = in->tree.sources[node];
    int is_second_opinion = !(heard & in->by) && !(heard & in->alike && in->by & in->alike);
    if (is_second_opinion) in->claims[node] = known + claim - known * claim;
    else if (claim > known) in->claims[node] = claim;
    in->tree.sources[node] = heard | in->by;
}

static void weigh(struct pl_union *in) {
    const struct pl_tree *tree = &in->tree;
    in->sure = 0;
    for (int64_t i = 0; i < tree->nodes; i++) {
        int64_t parent = tree->parents[i];
        tree->weights[i] = parent == ROOT ? in->claims[i] : in->claims[i] * tree->weights[parent];
        in->sure += tree->weights[i];
    }
}

PL_API int pl_unite(struct pl_union *in) {
    struct pl_tree *tree = &in->tree;
    const struct pl_tree *given = &in->given;
    if (given->nodes < 0 || tree->nodes + given->nodes > in->room) return PL_BAD_ARGUMENT;
    for (int64_t i = 0; i < given->nodes; i++) {
        int64_t parent = given->parents[i] < 0 ? in->at : in->places[given->parents[i]];
        double claim = in->unweighted;
        if (given->weights) claim = pl_claim(given->weights, given->parents, i);
        int64_t node = find(tree, parent, given->tokens[i]);
        in->places[i] = node;
        if (node < tree->nodes) {
            hear_again(in, node, claim);
            continue;
        }
        tree->tokens[node] = given->tokens[i];
        tree->parents[node] = parent;
        tree->sources[node] = in->by;
        in->claims[node] = claim;
        tree->nodes++;
    }
    weigh(in);
    return PL_OK;
}

PL_API void pl_cut_union(struct pl_union *in, int64_t most) {
    struct pl_tree *tree = &in->tree;
    if (tree->nodes <= most) return;
    int64_t *kept = in->places, nodes = most > 0 ? most : 0;
    pl_likeliest_first(tree->weights, tree->nodes, kept);
    pl_sort_numbers(kept, nodes);
    for (int64_t i = 0; i < nodes; i++) {
        int64_t from = kept[i], above = i;
        while (above > 0 && kept[above - 1] >= tree->parents[from]) above--;
        tree->parents[i] = tree->parents[from] == ROOT ? ROOT : above;
        tree->tokens[i] = tree->tokens[from];
        tree->sources[i] = tree->sources[from];
        tree->weights[i] = tree->weights[from];
    }
    tree->nodes = nodes;
}

PL_API int64_t pl_union_ends(struct pl_union *in, int64_t sources, int64_t most) {
    const struct pl_tree *tree = &in->tree;
    int64_t count = 0;
    for (int64_t node = 0; node < tree->nodes; node++) {
        int is_end = (tree->sources[node] & sources) != 0;
        for (int64_t i = node + 1; is_end && i < tree->nodes; i++) is_end = tree->parents[i] != node;
        if (!is_end) continue;
        int64_t to = count;
        for (; to > 0 && tree->weights[in->places[to - 1]] < tree->weights[node]; to--)
            in->places[to] = in->places[to - 1];
        in->places[to] = node;
        count++;
    }
    return count < most ? count : most;
}
