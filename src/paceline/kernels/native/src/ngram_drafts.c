/* Drafts from n-gram counts, the likeliest guess first. */
#include <stdlib.h>

#include "api.h"
#include "ngram_tables.h"

/* A node, or the root: what follows it, and its likeliest guess not yet taken. */
struct node {
    double path_chance;
    const struct table *of;
    int64_t depth, run, most; /* run: length of the known run; most: longest to try for a child */
    int64_t total, rank;
    int32_t guess; /* a follower; NONE if none is left */
    double weight; /* of the guess */
};

/* Keys [longest + 1], by length, of the runs that end at node `at`, or at the root if below 0. Returns
   the greatest length. */
static int64_t keys_after(const struct pl_ngram_draft *in, int64_t at, int64_t longest,
                           uint64_t *keys) {
    int64_t length = 0;
    if (at >= 0) keys[0] = shard_of((int32_t)in->found.tokens[at]);
    else keys[0] = in->length ? shard_of(in->tail[in->length - 1]) : 0;
    for (; length < longest && at >= 0; at = in->found.parents[at], length++)
        keys[length + 1] = mixed(keys[length], (int32_t)in->found.tokens[at]);
    for (int64_t left = in->length; length < longest && left > 0; length++)
        keys[length + 1] = mixed(keys[length], in->tail[--left]);
    return length;
}

static int look(const struct pl_ngrams *of, const uint64_t *keys, int64_t most,
                struct node *node) {
    for (int64_t length = most < of->longest ? most : of->longest; length >= of->shortest;
         length--) {
        const struct table *table = &of->tables[length - of->shortest];
        int32_t run = find(table, keys[length]);
        if (run == NONE) continue;
        node->of = table;
        node->run = length;
        node->total = table->runs[run].total;
        node->guess = table->runs[run].first;
        return 1;
    }
    return 0;
}

/* A token that followed a known run `seen` times of `total` has the chance
   seen / total * seen / (seen + doubt / run^2). */
static void weigh(const struct pl_ngram_draft *in, struct node *node) {
    if (node->guess == NONE || node->rank == in->own->width) {
        node->guess = NONE;
        return;
    }
    double seen = (double)node->of->followers[node->guess].seen, run = (double)node->run;
    double share = seen / (double)node->total * seen / (seen + in->doubt / (run * run));
    node->weight = node->path_chance * share;
}

/* Finds what follows node `at`, where the text itself knows runs of at most `most` tokens. */
static void follow(const struct pl_ngram_draft *in, int64_t at, int64_t most, struct node *node) {
    uint64_t keys[LONGEST_RUN + 1];
    int64_t length = keys_after(in, at, in->own->longest, keys);
    node->guess = NONE;
    node->rank = 0;
    if (look(in->own, keys, most < length ? most : length, node))
        node->most = node->run + 1; /* a known run is also known without its last token */
    else if (in->others && look(in->others, keys, length, node))
        node->most = in->own->shortest;
    weigh(in, node);
}

static int64_t best_of(const struct node *nodes, int64_t count) {
    int64_t best = NONE;
    for (int64_t i = 0; i < count; i++)
        if (nodes[i].guess != NONE && (best == NONE || nodes[i].weight > nodes[best].weight))
            best = i;
    return best;
}

PL_API int pl_ngrams_draft(struct pl_ngram_draft *in) {
    struct pl_tree *tree = &in->found;
    tree->nodes = 0;
    if (in->length < 0 || in->budget < 0 || in->depth < 1) return PL_BAD_ARGUMENT;
    struct node few[65], *nodes = few;
    if (in->budget >= 65) nodes = malloc((size_t)(in->budget + 1) * sizeof *nodes);
    if (!nodes) return PL_NO_MEMORY;
    nodes[0] = (struct node){.path_chance = 1.0};
    follow(in, -1, in->own->longest, &nodes[0]);
    int64_t above;
    while (tree->nodes < in->budget && (above = best_of(nodes, tree->nodes + 1)) != NONE) {
        struct node *parent = &nodes[above], *node = &nodes[tree->nodes + 1];
        tree->tokens[tree->nodes] = parent->of->followers[parent->guess].token;
        tree->parents[tree->nodes] = above - 1;
        tree->weights[tree->nodes] = parent->weight;
        *node = (struct node){.path_chance = parent->weight, .depth = parent->depth + 1, .guess = NONE};
        parent->guess = parent->of->followers[parent->guess].next;
        parent->rank++;
        weigh(in, parent);
        if (node->depth < in->depth && tree->nodes + 1 < in->budget)
            follow(in, tree->nodes, parent->most, node);
        tree->nodes++;
    }
    if (nodes != few) free(nodes);
    return PL_OK;
}
