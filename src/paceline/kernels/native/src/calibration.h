/* How often guesses of a text are right, and which of them are worth their rows. */
#ifndef PL_CALIBRATION_H
#define PL_CALIBRATION_H

#include <stdint.h>

struct pl_calibration;

/* Kinds of guesses: a class of claims begins at each border, a class of depths at each depth, both
   ascending. They are not copied. */
struct pl_kinds {
    const double *borders;     /* [border_count] */
    const int64_t *depths;     /* [depth_count] */
    int64_t border_count, depth_count;
    double least, most;        /* claims count as no less and no more, chances as no more */
    double unknown;            /* the claim of a guess without a weight */
    double prior;              /* so many guesses is a drafter's word worth */
};

/* A tree that is proposed where the text ends now. */
struct pl_sizing {
    struct pl_calibration *of;
    int64_t nodes;
    const int64_t *tokens, *parents, *sources; /* [nodes], as `Tree` has them */
    const double *weights;                     /* [nodes]; NULL where nothing is known */
    double sure;         /* tokens of a pass without any of them */
    const double *costs; /* [nodes + 1] of passes with 0, 1, ... of them; NULL: none are chosen */

    double *path_chances;       /* [nodes] how likely each is to be accepted */
    int64_t *kept;       /* [nodes] has room for all; those that gain most, ascending */
    int64_t keeps;
    double promised;     /* how many of these are expected to be accepted */
};

#endif
