/* What products share. */
#ifndef PL_MULTIPLY_H
#define PL_MULTIPLY_H

#include "threads.h"
#include "tier.h"

/* Bytes for `count` rows in the form that a product with this matrix reads; 0 if they stay floats. */
size_t pl_room_for(const struct pl_matrix *matrix, int64_t count);

/* `count` rows in that room; `from`, `stride`: see pl_rows. */
struct pl_rows pl_rows_in(void *room, const struct pl_matrix *matrix, int64_t count,
                          const float *from, int64_t stride);

/* Rounds rows [first, end), unless the matrix takes floats. numbers: of a row; the rest of its last
   group is 0. */
void pl_round_rows(const struct pl_tier *tier, const struct pl_matrix *matrix,
                   struct pl_rows *rows, int64_t numbers, int64_t first, int64_t end);

/* A product in pieces: blocks of outputs, for a stretch of rows that stays in a core's cache. */
struct pl_product {
    const struct pl_tier *tier;
    struct pl_work work;
    int64_t blocks, together; /* rows of a stretch */
};

struct pl_product pl_plan_product(const struct pl_tier *tier, const struct pl_matrix *matrix,
                                  const struct pl_rows *rows, const float *bias, float *out,
                                  int64_t stride);
int64_t pl_product_pieces(const struct pl_product *of);
/* How many pieces a thread takes at once. */
int64_t pl_product_size(const struct pl_product *of, int threads);
/* Where the weights of a piece begin. */
const uint8_t *pl_weights_at(const struct pl_product *of, int64_t piece);
/* next: the weights that this thread reads after its share; NULL if unknown. */
void pl_run_product(const struct pl_product *of, const struct pl_taken *taken,
                    const uint8_t *next);

#endif
