/* Trees of several sources, merged into one. */
#ifndef PL_UNIONS_H
#define PL_UNIONS_H

#include <stdint.h>

/* The columns have `room` entries. Sources count as independent: a node that several propose is wrong
   only if all of them are. But among sources in the bit set `alike`, and if a source repeats itself,
   the larger claim counts. */
struct pl_union {
    int64_t alike, room, nodes;
    int64_t *tokens, *parents, *sources; /* parents come first, or are -1 */
    double *claims, *weights;            /* chance if the parent is right, and overall */
    double sure;                         /* the sum of the weights */

    /* One more tree, from the sources `by`, to add below node `at`, or below the root if -1. */
    int64_t count, at, by;
    const int64_t *given_tokens, *given_parents; /* [count] */
    const double *given_weights;                 /* [count]; NULL: all claim `unweighted` */
    double unweighted;
    int64_t *places; /* [room]: the node that each given node became; or another result */
};

#endif
