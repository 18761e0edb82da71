/* Trees that grow level by level; see level_tree.py. */
#ifndef PL_LEVEL_TREE_H
#define PL_LEVEL_TREE_H

#include <stddef.h>

#include "drafts.h"

/* Guesses, numbered in the order in which they came; `first` is the first of the last level. places:
   results of the last search. above: the guesses that the next level's rows read, -1 for the root.
   likely: the chance that one of those is right. wanted: the path chance that pl_is_wanted updates. */
struct pl_level_tree {
    int64_t nodes, first;
    int64_t *tokens, *parents, *places, *above;
    double *path_chances, *sorted, likely, wanted;
    float *shares;
};

/* Describes the passes over a draft's levels: where rows are, and what they see. */
struct pl_level_rows {
    struct pl_pass pass;
    struct pl_seen seen;
    int64_t *where, *positions;
    int32_t *first, *count, *begins, *extra;
};

/* Memory for `rows` rows, each of which sees at most `extra` slots beyond its stretch. */
size_t pl_bytes_of_rows(size_t rows, size_t extra);
/* Fills in all but the counts of rows: each row is read, and kept, at its own place. `memory` is
   aligned to 8 bytes. */
void pl_use_rows(struct pl_level_rows *of, size_t rows, void *memory);

/* Memory for `nodes` guesses, a multiple of 8 bytes. */
size_t pl_bytes_of_tree(int64_t nodes);
void pl_use_tree(struct pl_level_tree *of, int64_t nodes, void *memory);

/* Adds a level: guesses after each of `rows` rows of logits, which read `above`. */
int pl_add_level(struct pl_level_tree *to, const struct pl_guesses *of, const float *logits,
                 int64_t rows);

/* Finds the `beam` likeliest guesses of the last level, without those less likely than `least`: their
   places in the level go to `places`, their numbers to `above`. Returns how many; 0 if no level should
   follow level `level`, counted from 0. */
int64_t pl_go_on(struct pl_level_tree *in, int64_t beam, double least,
                 const struct pl_chain_end *end, int64_t level);

/* The likeliest nodes of all. Their ancestors are included: they are no less likely, and come first. */
void pl_take_best(struct pl_level_tree *from, struct pl_guesses *to);

#endif
