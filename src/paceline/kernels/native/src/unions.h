/* Trees of several sources made one. */
#ifndef PL_UNIONS_H
#define PL_UNIONS_H

#include <stdint.h>

/* The columns have `room` entries. A node is likelier than each of its sources says, wrong only if
   all are, as if they erred independently; but of what is said by sources that are `alike`, a set
   of bits, or by one of them again, the larger claim counts. */
struct pl_union {
    int64_t alike, room, nodes;
    int64_t *tokens, *parents, *sources; /* parents come first, or are -1 */
    double *claims, *weights;            /* where the parent is right, and at all */
    double sure;                         /* the sum of the weights */

    /* One more tree, hung below node `at`, or the root where that is -1, by the sources `by`. */
    int64_t count, at, by;
    const int64_t *given_tokens, *given_parents; /* [count] */
    const double *given_weights;                 /* [count]; NULL: all claim `unweighted` */
    double unweighted;
    int64_t *places; /* [room]: the node that each of them became; or whatever is asked for */
};

#endif
