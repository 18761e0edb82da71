/* What followed runs of tokens in a text, and how often. */
#ifndef PL_NGRAMS_H
#define PL_NGRAMS_H

#include <stdint.h>

struct pl_ngrams;

/* The question: how does the text with the last tokens `tail` continue? */
struct pl_ngram_draft {
    const struct pl_ngrams *own;    /* of the text itself */
    const struct pl_ngrams *others; /* used where `own` knows nothing; NULL for none */
    const int32_t *tail;            /* [length] */
    int64_t length;
    int64_t budget;                 /* most nodes */
    int64_t depth;                  /* of the deepest node */
    double doubt;                   /* lowers a token's chance, see ngram_drafts.c */

    /* The answer, likeliest first: parents [budget] are nodes or -1; weights [budget] are the
       chances of the paths. */
    int64_t nodes;
    int32_t *node_tokens, *node_parents;
    double *weights;
};

#endif
