/* Medusa's draft: heads guess independently, and the likeliest paths over all heads form the tree;
   see candidate_tree.py. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "guesses.h"

enum { MOST_HEADS = 16 };

/* A candidate path: its chance and that of the path above it, the node above, its ranks. */
struct path {
    double path_chance, above;
    int64_t parent, depth;
    int64_t ranks[MOST_HEADS];
};

/* Whether `one` comes first: by chance, then in lexical order. */
static int comes_first(const struct path *one, const struct path *other) {
    if (one->path_chance != other->path_chance) return one->path_chance > other->path_chance;
    for (int64_t i = 0; i < one->depth && i < other->depth; i++)
        if (one->ranks[i] != other->ranks[i]) return one->ranks[i] < other->ranks[i];
    return one->depth < other->depth;
}

/* Adds a path if it exists and can be right. */
static int64_t offer(struct path *paths, int64_t count, struct path path, const double *chances,
                     const struct pl_medusa *of) {
    const int64_t rank = path.ranks[path.depth - 1];
    if (path.depth > of->heads || rank >= of->guesses.ranks) return count;
    path.path_chance = path.above * chances[(path.depth - 1) * of->guesses.ranks + rank];
    if (path.path_chance > 0) paths[count++] = path;
    return count;
}

static void grow(struct pl_medusa *of, const int64_t *tokens, const double *chances,
                 struct path *paths) {
    const struct pl_guesses *to = &of->guesses;
    struct pl_tree *tree = &of->guesses.found;
    int64_t count = offer(paths, 0, (struct path){.above = 1, .parent = -1, .depth = 1}, chances, of);
    for (tree->nodes = 0; count && tree->nodes < to->budget;) {
        int64_t best = 0;
        for (int64_t i = 1; i < count; i++)
            if (comes_first(paths + i, paths + best)) best = i;
        const struct path taken = paths[best];
        paths[best] = paths[--count];
        const int64_t node = tree->nodes++, last = taken.depth - 1;
        tree->tokens[node] = tokens[last * to->ranks + taken.ranks[last]];
        tree->parents[node] = taken.parent, tree->weights[node] = taken.path_chance;
        struct path sibling = taken, child = taken;
        sibling.ranks[last]++;
        count = offer(paths, count, sibling, chances, of);
        if (taken.depth == of->heads) continue;
        child.above = taken.path_chance, child.parent = node, child.ranks[child.depth++] = 0;
        count = offer(paths, count, child, chances, of);
    }
}

PL_API int pl_draft_medusa(struct pl_medusa *of, int threads) {
    struct pl_guesses *to = &of->guesses;
    if (of->heads < 1 || of->heads > MOST_HEADS || to->ranks < 1 || to->ranks > to->outputs ||
        to->budget < 1)
        return PL_BAD_ARGUMENT;
    const int64_t count = of->heads * to->ranks;
    const size_t each = 2 * sizeof(int64_t) + sizeof(double);
    const size_t room = (size_t)(2 * to->budget + 2) * sizeof(struct path);
    char *memory = malloc(room + (size_t)count * each);
    if (!memory) return PL_NO_MEMORY;
    int64_t *tokens = (int64_t *)(memory + room);
    double *chances = (double *)(tokens + count);
    float *shares = (float *)(chances + count);
    int64_t places[MOST_HEADS];
    for (int64_t i = 0; i < MOST_HEADS; i++) places[i] = i;
    struct pl_pass pass = {.tokens = places, .keep = places};
    memcpy(of->blocks.given, of->state, (size_t)of->hidden * sizeof(float));
    int failed = pl_run_part(&of->blocks, 1, &pass, threads);
    if (!failed) {
        memcpy(of->head.given, of->blocks.out, (size_t)(of->heads * of->hidden) * sizeof(float));
        failed = pl_run_part(&of->head, of->heads, &pass, threads);
    }
    if (!failed) pl_add_noise(to, of->head.out, of->heads, 0, 1);
    if (!failed) failed = pl_guess(to, of->head.out, of->heads, tokens, shares, chances);
    if (!failed) grow(of, tokens, chances, (struct path *)memory);
    free(memory);
    return failed;
}
