/* Rows of floats times a block of panels of floats.

   For each output and row, inputs are multiplied and added in order,
       sum = fma(weight, number, sum)
   so a row has the same bits beside any others, and in every tier. BF16_DOT takes two inputs at once,
   with the row's numbers rounded to bfloat16; there, numbers below 2 to the -126 may count as 0. */
#include "some_rows.h"

/* The numbers of LANES outputs. */
INLINE floats_t load_weights(const enum pl_format format, const uint8_t *from) {
    if (format == PL_F32 || format == PL_BF16_DOT) return load_floats((const float *)from);
    return format == PL_F16 ? halfs(from) : brains(from);
}

#ifndef PAIRS_TIMES_PLUS
INLINE floats_t pairs_times_plus(floats_t weights, floats_t numbers, floats_t sum) {
    sum = times_plus(upper_brains(weights), upper_brains(numbers), sum);
    return times_plus(lower_brains(weights), lower_brains(numbers), sum);
}
#endif

/* `rows` rows from `place`. */
INLINE void float_block(const enum pl_format format, const int rows, const struct pl_work *work,
                        int64_t block, int64_t place, const uint8_t *next) {
    const struct pl_matrix *matrix = work->matrix;
    const int pairs = format == PL_BF16_DOT, width = pairs || format == PL_F32 ? 4 : 2;
    const int64_t count = pairs ? (matrix->inputs + 1) / 2 : matrix->inputs;
    const float *from = pairs ? work->rows->pairs : work->rows->floats;
    const int64_t stride = pairs ? work->rows->groups * PL_GROUP / 2 : work->rows->stride;
    const uint8_t *columns[FLOAT_COLUMNS];
    const float *numbers[ROWS_OF_FLOATS];
    floats_t found[ROWS_OF_FLOATS][FLOAT_COLUMNS];
    UNROLL
    for (int c = 0; c < FLOAT_COLUMNS; c++) {
        const int64_t panel = (block * FLOAT_OUTPUTS + (int64_t)c * LANES) / PL_PANEL;
        columns[c] = panel_at(matrix, format, panel) + width * LANES * (c % VECTORS);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        numbers[r] = from + (place + r) * stride;
        UNROLL
        for (int c = 0; c < FLOAT_COLUMNS; c++) found[r][c] = no_floats();
    }
    for (int64_t k = 0; k < count; k++) {
        floats_t weights[FLOAT_COLUMNS];
        fetch(&next, width * FLOAT_COLUMNS * LANES);
        UNROLL
        for (int c = 0; c < FLOAT_COLUMNS; c++) {
            const uint8_t *at = columns[c] + k * width * PL_PANEL;
            weights[c] = load_weights(format, at);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const floats_t number = same_floats(numbers[r][k]);
            UNROLL
            for (int c = 0; c < FLOAT_COLUMNS; c++)
                found[r][c] = pairs ? pairs_times_plus(weights[c], number, found[r][c])
                                    : times_plus(weights[c], number, found[r][c]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) write_block(work, FLOAT_COLUMNS, block, place + r, found[r]);
}

#define FLOAT_ROWS(format, rows) ROWS_WITH(float_block, format, rows)
#define FOR_FLOATS(format) UP_TO(ROWS_OF_FLOATS)(FLOAT_ROWS, format) \
    RUN_WITH(format, ROWS_OF_FLOATS, 1, FLOAT_OUTPUTS / PL_PANEL)
#ifndef ADDED
FOR_FLOATS(PL_F32)
FOR_FLOATS(PL_F16)
FOR_FLOATS(PL_BF16)
#endif
FOR_FLOATS(PL_BF16_DOT)
