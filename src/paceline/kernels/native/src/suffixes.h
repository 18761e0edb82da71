/* Places of a text, sorted by what stands before them. */
#ifndef PL_SUFFIXES_H
#define PL_SUFFIXES_H

#include <stdint.h>

enum { PL_MOST_HITS = 256 };

/* Place p is the gap before tokens[p]. Places are in the order of the tokens before them, read
   backwards as far as a border, of which `most` count; of equal ones the earlier place comes first.
   Places with a border on either side are not in the order. */
struct pl_suffixes {
    int32_t *tokens;    /* [count], below 0: a border, which nothing matches */
    int32_t *order;     /* [size] */
    int64_t count, size, most;

    /* What is asked: how the text goes on whose last tokens are `tail` [length]. */
    const int32_t *tail;
    int64_t length;
    int64_t least;      /* shorter matches are none, at least 1 */
    int64_t hits;       /* places that are looked at, of more an even sample; to PL_MOST_HITS */
    int64_t budget;     /* nodes */
    int64_t per_match;  /* nodes for each token that matches; 0 for no such limit */
    int64_t depth;      /* of the deepest node */
    int64_t branches;   /* children of a node */
    double doubt;       /* what a token's chance is taken less for, see suffixes.c */

    /* The answer: tokens of the tail that match, those of the next shorter suffix that stands in
       more places (0 for none), and where in the order the places are. */
    int64_t matched, shorter, begin, end;
    /* A tree of what follows there: parents [budget] are nodes or -1; weights [budget] are the
       chances of the paths. */
    int64_t nodes;
    int32_t *node_tokens, *node_parents;
    double *weights;
    double total;       /* of the weights */
};

#endif
