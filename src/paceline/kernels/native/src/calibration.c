/* Counts right guesses; planning/calibration.py does the same and says what is counted. */
#include "calibration.h"

#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "likeliest_first.h"

enum { NONE = -1 };

/* Guesses of a kind, and how many of them were right; old ones fade. */
struct count {
    double right, tried, claimed;
};

struct guess {
    int64_t token, parent, sources, kind;
    double claim; /* 0 if it is no guess */
};

/* A tree in which all tokens so far form a path, and the end of that path. */
struct open_tree {
    int64_t nodes, at;
    struct guess guesses[];
};

struct pl_calibration {
    const struct pl_kinds *kinds;
    double keep;
    struct count all;
    /* For each set of sources [set_count]: its name; its counts in total, for trust in its claims, then
       by kind. */
    int64_t *names;
    struct count *counts;
    int64_t set_count, set_room;
    struct open_tree **open;
    int64_t open_count, open_room;
};

static int64_t kind_count(const struct pl_kinds *of) {
    return (of->border_count + 1) * (of->depth_count + 1);
}

static int64_t kind_of(const struct pl_kinds *of, double claim, int64_t depth) {
    int64_t column = 0, row = 0;
    while (column < of->border_count && of->borders[column] <= claim) column++;
    while (row < of->depth_count && of->depths[row] <= depth) row++;
    return row * (of->border_count + 1) + column;
}

/* The counts of a set, its total first; NULL if nothing is known about it. */
static struct count *set_of(const struct pl_calibration *in, int64_t sources) {
    for (int64_t i = 0; i < in->set_count; i++)
        if (in->names[i] == sources) return in->counts + i * (1 + kind_count(in->kinds));
    return NULL;
}

static int reserve_sets(struct pl_calibration *in, int64_t room) {
    if (room <= in->set_room) return PL_OK;
    size_t each = (size_t)(1 + kind_count(in->kinds)) * sizeof *in->counts;
    int64_t *names = realloc(in->names, (size_t)room * sizeof *names);
    if (names) in->names = names;
    struct count *counts = realloc(in->counts, (size_t)room * each);
    if (counts) in->counts = counts;
    if (!names || !counts) return PL_NO_MEMORY;
    in->set_room = room;
    return PL_OK;
}

static struct count *new_set(struct pl_calibration *in, int64_t sources) {
    if (in->set_count == in->set_room && reserve_sets(in, 2 * in->set_room + 4)) return NULL;
    int64_t each = 1 + kind_count(in->kinds);
    struct count *made = in->counts + in->set_count * each;
    memset(made, 0, (size_t)each * sizeof *made);
    in->names[in->set_count++] = sources;
    return made;
}

static double trust_in(const struct pl_calibration *in, const struct count *of, double prior) {
    return (of->right + in->kinds->prior * prior) / (of->claimed + in->kinds->prior);
}

/* The ratio of right guesses of these sources to those that they claim. */
static double trust_of(const struct pl_calibration *in, int64_t sources) {
    double prior = trust_in(in, &in->all, 1.0);
    if (!sources) return prior;
    if (sources & (sources - 1)) {
        prior = 0;
        for (int64_t left = sources; left; left &= left - 1) {
            double member = trust_of(in, left & -left);
            if (member > prior) prior = member;
        }
    }
    const struct count *known = set_of(in, sources);
    return known ? trust_in(in, known, prior) : prior;
}

static double chance_of(const struct pl_calibration *in, const struct guess *guess, double trust,
                        const struct count *known) {
    double prior = guess->claim * trust;
    if (!(prior < in->kinds->most)) prior = in->kinds->most;
    if (!known || known[1 + guess->kind].tried == 0) return prior;
    known += 1 + guess->kind;
    return (known->right + in->kinds->prior * prior) / (known->tried + in->kinds->prior);
}

static double bounded(const struct pl_kinds *of, double claim) {
    if (!(claim > of->least)) return of->least;
    return claim < of->most ? claim : of->most;
}

static void weigh(struct pl_sizing *in, struct guess *guesses, int64_t *depths) {
    const struct pl_kinds *kinds = in->of->kinds;
    const struct pl_tree *tree = &in->tree;
    const struct count *known = NULL;
    double trust = 0;
    int64_t looked_up = NONE;
    for (int64_t node = 0; node < tree->nodes; node++) {
        int64_t parent = tree->parents[node], by = tree->sources ? tree->sources[node] : 0;
        struct guess *guess = &guesses[node];
        *guess = (struct guess){.token = tree->tokens[node], .parent = parent, .sources = by};
        guess->claim = kinds->unknown;
        if (tree->weights) guess->claim = bounded(kinds, pl_claim(tree->weights, tree->parents, node));
        depths[node] = parent < 0 ? 1 : depths[parent] + 1;
        guess->kind = kind_of(kinds, guess->claim, depths[node]);
        if (by != looked_up) {
            known = set_of(in->of, by);
            trust = trust_of(in->of, by);
            looked_up = by;
        }
        in->path_chances[node] = (parent < 0 ? 1.0 : in->path_chances[parent]) *
                          chance_of(in->of, guess, trust, known);
        if (tree->weights && !(tree->weights[node] > 0)) guess->claim = 0;
    }
}

static int watch(struct pl_calibration *in, struct open_tree *tree) {
    if (in->open_count == in->open_room) {
        int64_t room = 2 * in->open_room + 4;
        struct open_tree **more = realloc(in->open, (size_t)room * sizeof *more);
        if (!more) return PL_NO_MEMORY;
        in->open = more;
        in->open_room = room;
    }
    in->open[in->open_count++] = tree;
    return PL_OK;
}

/* Chooses the nodes that gain the most tokens per time of the pass; among equals, the fewest. */
static void choose(struct pl_sizing *in) {
    int64_t *kept = in->kept;
    pl_likeliest_first(in->path_chances, in->tree.nodes, kept);
    double best = in->sure / in->costs[0], gained = in->sure, promised = 0;
    in->keeps = 0;
    for (int64_t i = 0; i < in->tree.nodes; i++) {
        gained += in->path_chances[kept[i]];
        if (gained / in->costs[i + 1] > best) {
            best = gained / in->costs[i + 1];
            in->keeps = i + 1;
        }
    }
    pl_sort_numbers(kept, in->keeps);
    for (int64_t i = 0; i < in->keeps; i++)
        if (!in->tree.weights || in->tree.weights[kept[i]] != 0) promised += in->path_chances[kept[i]];
    in->promised = promised;
}

PL_API int pl_size_tree(struct pl_sizing *in) {
    in->keeps = 0;
    in->promised = 0;
    if (in->tree.nodes < 0) return PL_BAD_ARGUMENT;
    if (!in->tree.nodes) return PL_OK;
    size_t nodes = (size_t)in->tree.nodes;
    struct open_tree *tree = malloc(sizeof *tree + nodes * sizeof *tree->guesses);
    if (!tree) return PL_NO_MEMORY;
    tree->nodes = in->tree.nodes;
    tree->at = NONE;
    weigh(in, tree->guesses, in->kept); /* `kept` holds depths until nodes are chosen */
    if (in->costs) choose(in);
    if (watch(in->of, tree) == PL_OK) return PL_OK;
    free(tree);
    return PL_NO_MEMORY;
}

static void learn_one(struct count *of, double keep, const struct guess *guess, int right) {
    of->right = of->right * keep + right;
    of->tried = of->tried * keep + 1;
    of->claimed = of->claimed * keep + guess->claim;
}

static int learn(struct pl_calibration *in, const struct guess *guess, int right) {
    struct count *set = set_of(in, guess->sources);
    if (!set && !(set = new_set(in, guess->sources))) return PL_NO_MEMORY;
    learn_one(&in->all, in->keep, guess, right);
    learn_one(set, in->keep, guess, right);
    learn_one(set + 1 + guess->kind, in->keep, guess, right);
    return PL_OK;
}

/* Only the first of equal siblings counts. */
static int has_twin(const struct open_tree *tree, int64_t child) {
    for (int64_t i = tree->at + 1; i < child; i++)
        if (tree->guesses[i].parent == tree->at &&
            tree->guesses[i].token == tree->guesses[child].token)
            return 1;
    return 0;
}

/* Counts the guesses for a token as right or wrong; *at is the right one. */
static int judge(struct pl_calibration *own, struct pl_calibration *all,
                 const struct open_tree *tree, int64_t token, int64_t *at) {
    *at = NONE;
    for (int64_t child = tree->at + 1; child < tree->nodes; child++) {
        const struct guess *guess = &tree->guesses[child];
        if (guess->parent != tree->at || has_twin(tree, child)) continue;
        int right = guess->token == token;
        if (guess->claim > 0 && (learn(own, guess, right) || learn(all, guess, right)))
            return PL_NO_MEMORY;
        if (right) *at = child;
    }
    return PL_OK;
}

PL_API int pl_calibration_observe(struct pl_calibration *own, struct pl_calibration *all,
                               const int64_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t open = own->open_count;
        own->open_count = 0;
        for (int64_t one = 0; one < open; one++) {
            struct open_tree *tree = own->open[one];
            int64_t at;
            if (judge(own, all, tree, tokens[i], &at)) {
                for (; one < open; one++) free(own->open[one]);
                return PL_NO_MEMORY;
            }
            tree->at = at;
            if (at == NONE) free(tree);
            else own->open[own->open_count++] = tree;
        }
    }
    return PL_OK;
}

PL_API struct pl_calibration *pl_calibration_new(const struct pl_kinds *kinds, double memory) {
    struct pl_calibration *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->kinds = kinds;
    made->keep = 1 - 1 / memory;
    return made;
}

static struct count at_most(struct count of, double tried) {
    double scale = of.tried > 0 && tried / of.tried < 1.0 ? tried / of.tried : 1.0;
    return (struct count){of.right * scale, of.tried * scale, of.claimed * scale};
}

PL_API struct pl_calibration *pl_calibration_heir(const struct pl_calibration *of, double memory,
                                                  double evidence) {
    struct pl_calibration *made = pl_calibration_new(of->kinds, memory);
    if (!made) return NULL;
    made->all = at_most(of->all, evidence);
    int64_t each = 1 + kind_count(of->kinds);
    if (of->set_count && reserve_sets(made, of->set_count)) {
        pl_calibration_free(made);
        return NULL;
    }
    made->set_count = of->set_count;
    for (int64_t i = 0; i < of->set_count; i++) made->names[i] = of->names[i];
    for (int64_t i = 0; i < of->set_count * each; i++)
        made->counts[i] = at_most(of->counts[i], evidence);
    return made;
}

PL_API void pl_calibration_free(struct pl_calibration *of) {
    if (!of) return;
    for (int64_t i = 0; i < of->open_count; i++) free(of->open[i]);
    free(of->open);
    free(of->names);
    free(of->counts);
    free(of);
}
