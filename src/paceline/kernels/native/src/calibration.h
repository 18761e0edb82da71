/* How often guesses for a text are right, and which of them are worth their rows. */
#ifndef PL_CALIBRATION_H
#define PL_CALIBRATION_H

#include "tree.h"

struct pl_calibration;

/* Kinds of guesses: each border begins a class of claims, each depth a class of depths, both
   ascending. The arrays are not copied. */
struct pl_kinds {
    const double *borders;     /* [border_count] */
    const int64_t *depths;     /* [depth_count] */
    int64_t border_count, depth_count;
    double least, most;        /* claims are clamped to these, chances to at most `most` */
    double unknown;            /* the claim of a guess without a weight */
    double prior;              /* guesses that a drafter's claim is worth */
};

/* A tree that is proposed at the current end of the text. */
struct pl_sizing {
    struct pl_calibration *of;
    struct pl_tree tree;
    double sure;         /* tokens that a pass gains without any node */
    const double *costs; /* [nodes + 1] of passes with 0, 1, ... nodes; NULL: choose none */

    double *path_chances;       /* [nodes] chance of each to be accepted */
    int64_t *kept;       /* [nodes], room for all; the nodes that gain most, ascending */
    int64_t keeps;
    double promised;     /* expected number of accepted nodes among these */
};

#endif
