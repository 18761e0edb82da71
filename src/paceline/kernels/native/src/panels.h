/* Rows times blocks of panels of any format: where panels are, and where outputs go. Written once for
   all tiers, in the operations of a vec_*.h. */
#include "tier.h"

#ifdef __OPTIMIZE__
#define INLINE static inline __attribute__((always_inline))
#else /* compiles in a tenth of the time */
#define INLINE static inline
#endif
#ifndef UNROLL /* a vec_*.h may have its own */
#define UNROLL _Pragma("GCC unroll 12")
#endif
/* Without it, compilers load everything at once and run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")
#define VECTORS (PL_PANEL / LANES)
#define OUTPUTS (COLUMNS * LANES)
#define FLOAT_OUTPUTS (FLOAT_COLUMNS * LANES)

#include "fetch.h"

/* Where a panel begins. Panels beyond the last count as the last: a block that extends beyond the
   matrix computes it twice. */
INLINE const uint8_t *panel_at(const struct pl_matrix *matrix, const enum pl_format format,
                               int64_t panel) {
    const int64_t panels = pl_panels(matrix->outputs);
    return matrix->panels +
           (panel < panels ? panel : panels - 1) * pl_panel_bytes(format, matrix->inputs);
}

/* The outputs of a block that the matrix ends in. */
static __attribute__((noinline)) void write_last(float *to, const float *from, const float *bias,
                                                 int64_t count) {
    for (int64_t o = 0; o < count; o++) to[o] = bias ? from[o] + bias[o] : from[o];
}

/* Writes a block's results for one row, `columns` columns plus the bias, to the row's outputs. */
INLINE void write_block(const struct pl_work *work, const int columns, int64_t block,
                        int64_t place, const floats_t *found) {
    const int outputs = columns * LANES;
    const int64_t begin = block * outputs, left = work->matrix->outputs - begin;
    const float *bias = work->bias ? work->bias + begin : NULL;
    float *to = work->out + place * work->stride + begin;
    if (left < outputs) {
        float whole[FLOAT_OUTPUTS + OUTPUTS];
        UNROLL
        for (int c = 0; c < columns; c++) store_floats(whole + c * LANES, found[c]);
        write_last(to, whole, bias, left);
        return;
    }
    UNROLL
    for (int c = 0; c < columns; c++)
        store_floats(to + c * LANES,
                     bias ? plus(found[c], load_floats(bias + c * LANES)) : found[c]);
}
