/* What drafts of one call have in common; see drafts.h. */
#ifndef PL_GUESSES_H
#define PL_GUESSES_H

#include "drafts.h"

/* Runs a part over so many rows; `pass` has what all parts share. */
int pl_run_part(const struct pl_part *part, int64_t rows, struct pl_pass *pass, int threads);

/* The embedding [hidden] of a token of the table `words`, see pl_chimera. */
void pl_put_word(const void *words, int64_t format, int64_t hidden, int64_t token, float *to);

/* Adds the noise of depth `depth` to the first row of logits, of the next depth that is `step` further
   to the second, and so on. */
void pl_hear(const struct pl_guesses *of, float *logits, int64_t rows, int64_t depth, int64_t step);

/* The likeliest tokens [rows, ranks] after rows of logits, and their shares, which add up to at most
   1 in a row. `shares` has room for as many. */
int pl_guess(const struct pl_guesses *of, const float *logits, int64_t rows, int64_t *tokens,
             float *shares, double *chances);

#endif
