/* What one tier (a set of processor instructions) offers. */
#ifndef PL_TIER_H
#define PL_TIER_H

#include "blocks.h"

/* Rows as products read them: 8-bit numbers, and for every group of 32 what belongs to it.

   codes [count, groups x 32]. scale [count, groups]. sum [count, groups]: of the numbers that the
   codes stand for. start [count, groups, 1 or 2]: minus the zero of the weights times the sum of
   the codes, of the group or of its two halves. */
struct pl_rows {
    int64_t count, groups;
    int8_t *codes;
    float *scale, *sum;
    int32_t *start;
};

/* A product: out [count, outputs] = rows x matrix + bias; `bias` may be NULL. */
struct pl_work {
    const struct pl_matrix *matrix;
    const struct pl_rows *rows;
    const float *bias;
    float *out;
    int64_t stride; /* of `out`, in numbers */
};

struct pl_tier {
    const char *name;
    /* Outputs that are computed together; a multiple of 16. */
    int outputs;
    /* `row` [inputs] -> row `place` of `rows`, for weights of this format. */
    void (*quantise)(enum pl_format format, const float *row, int64_t inputs,
                     struct pl_rows *rows, int64_t place);
    /* Blocks of `outputs` outputs, from `first` up to `end`. */
    void (*run)(const struct pl_work *work, int64_t first, int64_t end);
};

#endif
