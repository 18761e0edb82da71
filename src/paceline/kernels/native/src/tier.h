/* What one tier (a set of processor instructions) offers. */
#ifndef PL_TIER_H
#define PL_TIER_H

#include "blocks.h"

/* A group of 32 numbers of four rows, as 8-bit numbers: one address leads to all of it.

   sum: of the numbers that a row's codes stand for. start, second: minus the zero of the weights
   times the sum of the codes, of the group or of its two halves. */
enum { PL_FOUR = 4 };
struct pl_four {
    int8_t codes[PL_FOUR][PL_GROUP];
    float scale[PL_FOUR], sum[PL_FOUR];
    int32_t start[PL_FOUR], second[PL_FOUR];
};

/* Rows as products read them: fours [(count + 3) / 4, groups].

   For matrices of floats rows stay `floats`, `stride` numbers apart. For BF16_DOT and BF16_TILES:
   pairs [count, groups x 16], in the place of each float two numbers of bfloat16, the first one in
   its upper half. */
struct pl_rows {
    int64_t count, groups;
    const float *floats;
    int64_t stride;
    struct pl_four *fours;
    float *pairs;
};

/* The four that a row belongs to, by groups; the row is number place % PL_FOUR of it. */
static inline struct pl_four *pl_four_of(const struct pl_rows *rows, int64_t place) {
    return rows->fours + place / PL_FOUR * rows->groups;
}

/* A product: out [count, outputs] = rows x matrix + bias, of the rows from `first_row` up to
   `end_row`; `bias` may be NULL. */
struct pl_work {
    const struct pl_matrix *matrix;
    const struct pl_rows *rows;
    const float *bias;
    float *out;
    int64_t stride; /* of `out`, in numbers */
    int64_t first_row, end_row;
    /* Who multiplies goes on up to block `last`, and then reads what begins at `next`; NULL where
       nobody knows. */
    int64_t last;
    const uint8_t *next;
};

/* How numbers of keys and values are held. PL_INT8: `size` codes, and after them a float for every
   32 of them, which a code is to be multiplied with. */
enum pl_kind { PL_FLOAT32, PL_BFLOAT16, PL_FLOAT16, PL_INT8, PL_KINDS };

/* Slots that a row weighs together; numbers that belong to one scale of PL_INT8. Rows of a range
   begin at most so many slots apart, with so many query heads of one key head: work for a while that
   fits into the caches. */
enum { PL_BLOCK = 256, PL_SCALED = 32, PL_SLOTS_APART = 64, PL_HEADS_OF_A_RANGE = 48 };

/* Rows from `row` up to the next range's that begin at nearly one slot. They see so many blocks at
   most, cut into parts; unit: the first of them, key head by key head, among those of all ranges.
   partial: where its records begin in what parts share. */
struct pl_range {
    int64_t row, blocks, parts, unit, partial;
};

/* Attention of `rows` rows.

   query: of a head and row at its strides, in numbers. keys, values: of a head and slot at their
   strides, in bytes. first, count [rows]: the slots that a row sees. extra_begin [rows + 1]: where
   in `extra`, ascending, the slots are that it sees besides. out [rows, heads, value_size]. */
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
    float cap;    /* where it is not 0, scores are cap x tanh(score / cap) */
    int32_t unused;
    /* What the library finds out for itself. ranges: one more than there are. part: blocks of one.
       tail: slots from the first single one of a range to its last, at most. partial, done: what
       parts share, see pl_sharing. */
    const struct pl_range *ranges;
    int64_t part, tail;
    float *partial;
    _Atomic int *done; /* parts, [ranges, key heads] */
};

struct pl_pass;
struct pl_step;

struct pl_tier {
    const char *name;
    /* Blocks of so many outputs, from `first` up to `end`. */
    void (*run)(const struct pl_work *work, int64_t first, int64_t end);
    /* The tier that has all that follows: this one, or that which it adds a format to. */
    const struct pl_tier *rest;
    /* Outputs that are computed together, multiples of 16: of rounded weights, of floats. */
    int outputs, float_outputs;
    /* `row` [inputs] -> row `place` of `rows`, for weights of this format. */
    void (*quantise)(enum pl_format format, const float *row, int64_t inputs,
                     struct pl_rows *rows, int64_t place);
    /* Units (part of a range x key head) of an attention. room: so many floats as attend_room says,
       for this thread alone. */
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
