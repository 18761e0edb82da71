/* Trees of several sources, merged into one. */
#ifndef PL_UNIONS_H
#define PL_UNIONS_H

#include "tree.h"

/* The columns have `room` entries, claims too: chances if the parent is right. Sources count as independent: a node that several propose is wrong
   only if all of them are. But among sources in the bit set `alike`, and if a source repeats itself,
   the larger claim counts. */
struct pl_union {
    int64_t alike, room;
    struct pl_tree tree;
    double *claims;
    double sure; /* the sum of the weights */

    /* One more tree, from the sources `by`, to add below node `at`, or below the root if -1. Without
       weights all its nodes claim `unweighted`. */
    struct pl_tree given;
    int64_t at, by;
    double unweighted;
    int64_t *places; /* [room]: the node that each given node became; or another result */
};

#endif
