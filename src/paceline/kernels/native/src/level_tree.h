/* Trees that grow level by level; see level_tree.py. */
#ifndef PL_LEVEL_TREE_H
#define PL_LEVEL_TREE_H

#include <stddef.h>

#include "drafts.h"

/* Guesses by their numbers, in the order in which they came; `first` is the first of the last level.
   places: what was found last. above: of the next level's rows the guesses that they read, -1 for
   the root. likely: the chance that one of those is right; wanted: what
   pl_is_wanted has made of it so far. */
struct pl_level_tree {
    int64_t nodes, first;
    int64_t *tokens, *parents, *places, *above;
    double *path_chances, *sorted, likely, wanted;
    float *shares;
};

/* What describes the passes over a draft's levels: where rows lie, and what they see. */
struct pl_level_rows {
    struct pl_pass pass;
    struct pl_seen seen;
    int64_t *where, *positions;
    int32_t *first, *count, *begins, *extra;
};

/* Memory for so many rows, of which each sees up to `extra` slots besides its stretch. */
size_t pl_bytes_of_rows(size_t rows, size_t extra);
/* Fills in all but the numbers of rows: each is read, and kept, at its own place. `memory` begins at
   a multiple of 8 bytes. */
void pl_use_rows(struct pl_level_rows *of, size_t rows, void *memory);

/* Memory for so many guesses, a multiple of 8 bytes. */
size_t pl_bytes_of_tree(int64_t nodes);
void pl_use_tree(struct pl_level_tree *of, int64_t nodes, void *memory);

/* A level: guesses after each of `rows` rows of logits, which read `above`. */
int pl_add_level(struct pl_level_tree *to, const struct pl_guesses *of, const float *logits,
                 int64_t rows);

/* The `beam` likeliest guesses of the last level but those less likely than `least`: how many; their
   places in the level go to `places`, their numbers to `above`. 0 where after level `level`, from 0,
   no other is wanted. */
int64_t pl_go_on(struct pl_level_tree *in, int64_t beam, double least,
                 const struct pl_chain_end *end, int64_t level);

/* The likeliest nodes of all, with those above them: these are no less likely, and come first. */
void pl_take_best(struct pl_level_tree *from, struct pl_guesses *to);

#endif
