/* Places of a text, sorted by the tokens before them. */
#ifndef PL_SUFFIXES_H
#define PL_SUFFIXES_H

#include "tree.h"

enum { PL_MOST_HITS = 256 };

/* Place p is the gap before tokens[p]. Places are sorted by the tokens before them, read backwards up
   to a border, at most `most`; among equals, the earlier place comes first. Places with a border on
   either side are not in the order. */
struct pl_suffixes {
    int32_t *tokens;    /* [count]; below 0: a border, which nothing matches */
    int32_t *order;     /* [size] */
    int64_t count, size, most;

    /* The question: how does the text with the last tokens `tail` [length] continue? */
    const int32_t *tail;
    int64_t length;
    int64_t least;      /* shortest match, at least 1 */
    int64_t hits;       /* most places to look at, evenly sampled; up to PL_MOST_HITS */
    int64_t budget;     /* most nodes */
    int64_t per_match;  /* most nodes per matching token; 0 for no such limit */
    int64_t depth;      /* of the deepest node */
    int64_t branches;   /* most children of a node */
    double doubt;       /* lowers a token's chance, see suffixes.c */

    /* The answer: the number of tokens that match, that of the next shorter suffix that occurs in
       more places (0 for none), and where in the order the places are. */
    int64_t matched, shorter, begin, end;
    struct pl_tree found; /* what follows there; room for `budget` nodes */
    double total;         /* of its weights */
};

#endif
