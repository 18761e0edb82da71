/* Merges trees of several sources; union.py does the same. */
#include "unions.h"

#include "api.h"
#include "likeliest_first.h"

enum { ROOT = -1 };

static int64_t find(const struct pl_union *in, int64_t parent, int64_t token) {
    for (int64_t i = parent + 1; i < in->nodes; i++)
        if (in->parents[i] == parent && in->tokens[i] == token) return i;
    return in->nodes;
}

static void hear_again(struct pl_union *in, int64_t node, double claim) {
    double known = in->claims[node];
    int64_t heard = in->sources[node];
    int is_second_opinion = !(heard & in->by) && !(heard & in->alike && in->by & in->alike);
    if (is_second_opinion) in->claims[node] = known + claim - known * claim;
    else if (claim > known) in->claims[node] = claim;
    in->sources[node] = heard | in->by;
}

static void weigh(struct pl_union *in) {
    in->sure = 0;
    for (int64_t i = 0; i < in->nodes; i++) {
        int64_t parent = in->parents[i];
        in->weights[i] = parent == ROOT ? in->claims[i] : in->claims[i] * in->weights[parent];
        in->sure += in->weights[i];
    }
}

PL_API int pl_unite(struct pl_union *in) {
    if (in->count < 0 || in->nodes + in->count > in->room) return PL_BAD_ARGUMENT;
    for (int64_t i = 0; i < in->count; i++) {
        int64_t parent = in->given_parents[i] < 0 ? in->at : in->places[in->given_parents[i]];
        double claim = in->unweighted;
        if (in->given_weights) claim = pl_claim(in->given_weights, in->given_parents, i);
        int64_t node = find(in, parent, in->given_tokens[i]);
        in->places[i] = node;
        if (node < in->nodes) {
            hear_again(in, node, claim);
            continue;
        }
        in->tokens[node] = in->given_tokens[i];
        in->parents[node] = parent;
        in->sources[node] = in->by;
        in->claims[node] = claim;
        in->nodes++;
    }
    weigh(in);
    return PL_OK;
}

PL_API void pl_cut_union(struct pl_union *in, int64_t most) {
    if (in->nodes <= most) return;
    int64_t *kept = in->places, nodes = most > 0 ? most : 0;
    pl_likeliest_first(in->weights, in->nodes, kept);
    pl_sort_numbers(kept, nodes);
    for (int64_t i = 0; i < nodes; i++) {
        int64_t from = kept[i], above = i;
        while (above > 0 && kept[above - 1] >= in->parents[from]) above--;
        in->parents[i] = in->parents[from] == ROOT ? ROOT : above;
        in->tokens[i] = in->tokens[from];
        in->sources[i] = in->sources[from];
        in->weights[i] = in->weights[from];
    }
    in->nodes = nodes;
}

PL_API int64_t pl_union_ends(struct pl_union *in, int64_t sources, int64_t most) {
    int64_t count = 0;
    for (int64_t node = 0; node < in->nodes; node++) {
        int is_end = (in->sources[node] & sources) != 0;
        for (int64_t i = node + 1; is_end && i < in->nodes; i++) is_end = in->parents[i] != node;
        if (!is_end) continue;
        int64_t to = count;
        for (; to > 0 && in->weights[in->places[to - 1]] < in->weights[node]; to--)
            in->places[to] = in->places[to - 1];
        in->places[to] = node;
        count++;
    }
    return count < most ? count : most;
}
