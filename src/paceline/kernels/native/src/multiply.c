/* Products in pieces. */
#include "multiply.h"

#include <stdlib.h>

#include "api.h"

/* Bytes worth more threads; bytes of rows that leave room for a panel in a core's cache. */
enum { WORTH_THREADS = 48 << 10, OF_ROWS = 384 << 10, LEAST_ROWS = 48 };
_Static_assert(LEAST_ROWS % PL_FOUR == 0, "stretches are made of whole fours");

size_t pl_room_for(const struct pl_matrix *matrix, int64_t count) {
    const int64_t groups = pl_groups(matrix->inputs);
    if (pl_takes_floats(matrix->format)) return 0;
    if (pl_takes_pairs(matrix->format))
        return (size_t)(count * groups * (PL_GROUP / 2)) * sizeof(float);
    return (size_t)((count + PL_FOUR - 1) / PL_FOUR * groups) * sizeof(struct pl_four);
}

struct pl_rows pl_rows_in(void *room, const struct pl_matrix *matrix, int64_t count,
                          const float *from, int64_t stride) {
    struct pl_rows rows = {count, pl_groups(matrix->inputs), from, stride, NULL, NULL};
    if (pl_takes_pairs(matrix->format)) rows.pairs = room;
    else if (!pl_is_float(matrix->format)) rows.fours = room;
    return rows;
}

void pl_round_rows(const struct pl_tier *tier, const struct pl_matrix *matrix,
                   struct pl_rows *rows, int64_t numbers, int64_t first, int64_t end) {
    if (pl_takes_floats(matrix->format)) return;
    for (int64_t row = first; row < end; row++)
        tier->rest->quantise(matrix->format, rows->floats + row * rows->stride, numbers, rows, row);
}

struct pl_product pl_plan_product(const struct pl_tier *tier, const struct pl_matrix *matrix,
                                  const struct pl_rows *rows, const float *bias, float *out,
                                  int64_t stride) {
    const int floats = pl_is_float(matrix->format), pairs = pl_takes_pairs(matrix->format);
    const int64_t of_row = matrix->inputs * (pairs ? 2 : floats ? 4 : 1);
    const int outputs = floats ? tier->rest->float_outputs : tier->rest->outputs;
    const int64_t together = OF_ROWS / of_row / PL_FOUR * PL_FOUR;
    return (struct pl_product){
        tier,
        {matrix, rows, bias, out, stride, 0, rows->count, 0, NULL},
        (matrix->outputs + outputs - 1) / outputs,
        together < LEAST_ROWS ? LEAST_ROWS : together,
    };
}

int64_t pl_product_pieces(const struct pl_product *of) {
    return of->blocks * ((of->work.rows->count + of->together - 1) / of->together);
}

int64_t pl_product_size(const struct pl_product *of, int threads) {
    const struct pl_matrix *matrix = of->work.matrix;
    const int64_t pieces = pl_product_pieces(of), count = of->work.rows->count;
    const int64_t bytes =
        pl_panels(matrix->outputs) * pl_panel_bytes(matrix->format, matrix->inputs);
    if (bytes * ((count + 3) / 4) < WORTH_THREADS) return pieces > 0 ? pieces : 1;
    const int64_t size = pieces / (threads * 6);
    return size > 1 ? size : 1;
}

static int outputs_of(const struct pl_product *of) {
    const struct pl_tier *tier = of->tier->rest;
    return pl_is_float(of->work.matrix->format) ? tier->float_outputs : tier->outputs;
}

const uint8_t *pl_weights_at(const struct pl_product *of, int64_t piece) {
    const struct pl_matrix *matrix = of->work.matrix;
    return matrix->panels + piece % of->blocks * (outputs_of(of) / PL_PANEL) *
                                pl_panel_bytes(matrix->format, matrix->inputs);
}

void pl_run_product(const struct pl_product *of, const struct pl_taken *taken,
                    const uint8_t *next) {
    for (int64_t first = taken->first, some; first < taken->end; first += some) {
        const int64_t stretch = first / of->blocks, begin = first % of->blocks;
        const int64_t left = of->blocks - begin, until = begin + taken->until - first;
        some = taken->end - first < left ? taken->end - first : left;
        struct pl_work work = of->work;
        work.first_row = stretch * of->together;
        if (work.end_row > work.first_row + of->together)
            work.end_row = work.first_row + of->together;
        /* The next stretch of rows begins with the first block again. */
        work.last = until < of->blocks ? until : of->blocks;
        work.next = until <= of->blocks ? next : NULL;
        of->tier->run(&work, begin, begin + some);
    }
}

struct rounding {
    const struct pl_tier *tier;
    const struct pl_matrix *matrix;
    struct pl_rows *rows;
};

static void round_some(void *given, int64_t first, int64_t end) {
    const struct rounding *of = given;
    pl_round_rows(of->tier, of->matrix, of->rows, of->matrix->inputs, first, end);
}

static void multiply_some(void *product, int me, const struct pl_taken *taken) {
    (void)me;
    pl_run_product(product, taken, NULL);
}

PL_API int pl_product(int format, const uint8_t *panels, int64_t outputs, int64_t inputs,
                      const float *rows, int64_t count, const float *bias, float *out,
                      int64_t stride, int threads) {
    if (!pl_packed_bytes(format, outputs, inputs) || count < 0 || stride < outputs)
        return PL_BAD_ARGUMENT;
    const struct pl_matrix matrix = {(enum pl_format)format, outputs, inputs, panels};
    const struct pl_tier *tier = pl_current_tier();
    const size_t bytes = pl_room_for(&matrix, count);
    void *room = bytes ? malloc(bytes) : NULL;
    if (bytes && !room) return PL_NO_MEMORY;
    struct pl_rows in = pl_rows_in(room, &matrix, count, rows, inputs);
    struct rounding rounding = {tier, &matrix, &in};
    if (bytes) pl_in_pieces(round_some, &rounding, count, 16, threads);
    struct pl_product product = pl_plan_product(tier, &matrix, &in, bias, out, stride);
    pl_in_shares(multiply_some, &product, pl_product_pieces(&product),
                 pl_product_size(&product, threads), threads);
    free(room);
    return PL_OK;
}
