/* What drafts in one call share; see drafts.h. */
#ifndef PL_GUESSES_H
#define PL_GUESSES_H

#include "drafts.h"

/* Runs a part over `rows` rows; `pass` has what all parts share. */
int pl_run_part(const struct pl_part *part, int64_t rows, struct pl_pass *pass, int threads);

/* A token's embedding [hidden] from the table `words`, see pl_chimera. */
void pl_put_word(const void *words, int64_t format, int64_t hidden, int64_t token, float *to);

/* Adds noise to rows of logits: that of `depth` to the first row, of depth + step to the second, and so
   on. */
void pl_add_noise(const struct pl_guesses *of, float *logits, int64_t rows, int64_t depth, int64_t step);

/* The likeliest tokens [rows, ranks] by rows of logits, and their chances, which sum to at most 1 per
   row. shares: scratch memory of this size. */
int pl_guess(const struct pl_guesses *of, const float *logits, int64_t rows, int64_t *tokens,
             float *shares, double *chances);

#endif
