/* The functions of one tier (a set of processor instructions). */
#ifndef PL_TIER_H
#define PL_TIER_H

#include "blocks.h"

/* A group of 32 numbers of four rows, as 8-bit numbers, all behind one address.

   sum: of the numbers that a row's codes stand for. start, second: minus the weights' zero times the
   sum of the codes, of the group or of its two halves. */
enum { PL_FOUR = 4 };
struct pl_four {
    int8_t codes[PL_FOUR][PL_GROUP];
    float scale[PL_FOUR], sum[PL_FOUR];
    int32_t start[PL_FOUR], second[PL_FOUR];
};

/* Rows in the form that products read: fours [(count + 3) / 4, groups].

   For matrices of floats, rows stay `floats`, `stride` numbers apart. For BF16_DOT and BF16_TILES:
   pairs [count, groups x 16], two bfloat16 numbers in the place of each float, the first in its upper
   half. */
struct pl_rows {
    int64_t count, groups;
    const float *floats;
    int64_t stride;
    struct pl_four *fours;
    float *pairs;
};

/* The four that a row belongs to, by group; the row is number place % PL_FOUR of it. */
static inline struct pl_four *pl_four_of(const struct pl_rows *rows, int64_t place) {
    return rows->fours + place / PL_FOUR * rows->groups;
}

/* A product: out [count, outputs] = rows x matrix + bias, for rows [first_row, end_row); `bias` may be
   NULL. */
struct pl_work {
    const struct pl_matrix *matrix;
    const struct pl_rows *rows;
    const float *bias;
    float *out;
    int64_t stride; /* of `out`, in numbers */
    int64_t first_row, end_row;
    /* The thread continues up to block `last`, then reads what begins at `next`; NULL if unknown. */
    int64_t last;
    const uint8_t *next;
};

/* How keys and values are stored. PL_INT8: `size` codes, then one float scale per 32 of them. */
enum pl_kind { PL_FLOAT32, PL_BFLOAT16, PL_FLOAT16, PL_INT8, PL_KINDS };

/* Slots that a row weighs together; numbers per scale of PL_INT8; most slots between the beginnings of
   a range's rows, and most query heads of one key head in a range: as much work as fits into the
   caches. */
enum { PL_BLOCK = 256, PL_SCALED = 32, PL_SLOTS_APART = 64, PL_HEADS_OF_A_RANGE = 48 };

/* Rows from `row` up to the next range's, which begin at nearly the same slot. They see at most
   `blocks` blocks, cut into `parts`. unit: its first unit (part x key head) among those of all ranges.
   partial: where its records begin in the memory that parts share. */
struct pl_range {
    int64_t row, blocks, parts, unit, partial;
};

/* Attention of `rows` rows.

   query: with strides by head and row, in numbers. keys, values: with strides by head and slot, in
   bytes. first, count [rows]: the slots that a row sees. extra_begin [rows + 1]: where its other slots
   are in `extra`, ascending. out [rows, heads, value_size]. */
struct pl_attention {
    int64_t rows, heads, key_heads, size, value_size;
    const float *query;
    int64_t query_head, query_row;
    const void *keys;
    int64_t key_head, key_slot;
    const void *values;
    int64_t value_head, value_slot;
    const int32_t *first, *count, *extra_begin, *extra;
    float *out;
    float scale;
    int32_t kind; /* of keys and values */
    float cap;    /* if not 0, scores are cap x tanh(score / cap) */
    int32_t unused;
    /* Filled in by the library. ranges: one more than there are. part: blocks per part. tail: most
       slots from a range's first single slot to its last. partial, done: shared, see pl_sharing. */
    const struct pl_range *ranges;
    int64_t part, tail;
    float *partial;
    _Atomic int *done; /* finished parts [ranges, key heads] */
};

struct pl_pass;
struct pl_step;

struct pl_tier {
    const char *name;
    /* Multiplies blocks [first, end) of outputs. */
    void (*run)(const struct pl_work *work, int64_t first, int64_t end);
    /* The tier that has all that follows: this one, or the one that it adds a format to. */
    const struct pl_tier *rest;
    /* Outputs that are computed together, multiples of 16: for rounded weights, for floats. */
    int outputs, float_outputs;
    /* `row` [inputs] -> row `place` of `rows`, for weights of this format. */
    void (*quantise)(enum pl_format format, const float *row, int64_t inputs,
                     struct pl_rows *rows, int64_t place);
    /* Units (part of a range x key head) of an attention. room: attend_room floats, for this thread
       alone. */
    void (*attend)(const struct pl_attention *of, int64_t first, int64_t end, float *room);
    int64_t (*attend_room)(const struct pl_attention *of);
    /* Steps [begin, end) of a program for rows [first, last), see rowwise.h. */
    void (*row_steps)(const struct pl_step *begin, const struct pl_step *end,
                      const struct pl_pass *pass, int64_t first, int64_t last);
    /* The largest numbers of a row [count], see pl_likeliest. */
    void (*likeliest)(const float *row, int64_t count, int64_t most, int64_t *places,
                      float *shares);
};

/* The tier in use. */
const struct pl_tier *pl_current_tier(void);

#endif
