/* Trees of guesses, as `Tree` has them. */
#ifndef PL_TREE_H
#define PL_TREE_H

#include <stdint.h>

/* Parents come before their children; those of the root's are -1. weights: chances of the paths; NULL
   if unknown. sources: sets of bits; NULL if there are none. */
struct pl_tree {
    int64_t nodes;
    int64_t *tokens, *parents, *sources;
    double *weights;
};

#endif
