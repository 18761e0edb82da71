/* Attention of a few rows over a long text, in the operations of a vec_*.h.

   A row sees a stretch of slots (`first`, `count`), then single ones (`extra`): the text, and its own
   path through a tree. It reads them in this order, in blocks of PL_BLOCK: the scores, weights and sums
   of values of a block are computed, then joined to those of the blocks before. So a row's result does
   not depend on where its path is in the cache, on other rows, or on which thread computes which block:
   a token gets the same bits in a tree, in a chain and alone.

   The result for one or several blocks is a record: the sums of values, padded to sixteens, the largest
   score and the sum of the weights. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tier.h"

enum { PAIRS = PL_HEADS_OF_A_RANGE, STRIDE = PL_BLOCK + PL_SLOTS_APART + 64 };
/* Vectors of values that are summed together. */
#define WIDE 4
#define VALUES_AHEAD 32 /* slots */

/* Some blocks of a range for one key head. */
struct part {
    const struct pl_attention *of;
    const char *keys, *values;
    struct pair pairs[PAIRS];
    int64_t count, first; /* pairs; the first slot of the range */
    int64_t tail, tail_end;
    int tail_known;
    int late; /* whether values are fetched only while they are added: few pairs leave no time before */
    float *room, *at, *of_tail; /* scores: [count, STRIDE], [count, slots of the tail] */
};

static inline int64_t among(int64_t count, int64_t block) {
    const int64_t left = count - block * PL_BLOCK;
    return left < 0 ? 0 : left < PL_BLOCK ? left : PL_BLOCK;
}

static inline int64_t tail_stride(const struct pl_attention *of) {
    return (of->tail + TILE - 1) / TILE * TILE;
}

/* Adds weights x values of `slots` slots to `wide` vectors of sums, from `d` on, for `pairs` pairs. */
INLINE void add_vectors(const struct pl_attention *of, const int kind, const int pairs,
                        const int wide, const char *slot, int64_t slots, int late,
                        const float *const *weights, int64_t d, float *const *to) {
    const int bytes = kind == PL_FLOAT32 ? 4 : kind == PL_INT8 ? 1 : 2;
    floats_t sums[ROWS_OF_VALUES][WIDE];
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int v = 0; v < wide; v++) sums[p][v] = load_floats(to[p] + d + v * LANES);
    }
    for (int64_t i = 0; i < slots; i++, slot += of->value_slot) {
        floats_t values[WIDE];
        if (late) {
            UNROLL
            for (int v = 0; v < wide; v++)
                __builtin_prefetch(slot + VALUES_AHEAD * of->value_slot + (d + v * LANES) * bytes);
        }
        UNROLL
        for (int v = 0; v < wide; v++)
            values[v] = numbers_at(kind, slot, of->value_size, d + v * LANES);
        UNROLL
        for (int p = 0; p < pairs; p++) {
            const floats_t weight = same_floats(weights[p][i]);
            UNROLL
            for (int v = 0; v < wide; v++) sums[p][v] = times_plus(weight, values[v], sums[p][v]);
        }
    }
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int v = 0; v < wide; v++) store_floats(to[p] + d + v * LANES, sums[p][v]);
    }
}

/* The same for all numbers of a head. */
INLINE void add_slots(const struct pl_attention *of, const int kind, const int pairs,
                      const char *slot, int64_t slots, int late, const float *const *weights,
                      float *const *to) {
    int64_t d = 0;
    for (; d + WIDE * LANES <= of->value_size; d += WIDE * LANES)
        add_vectors(of, kind, pairs, WIDE, slot, slots, late, weights, d, to);
    for (; d + LANES <= of->value_size; d += LANES)
        add_vectors(of, kind, pairs, 1, slot, slots, late, weights, d, to);
    for (; d < of->value_size; d++)
        for (int p = 0; p < pairs; p++)
            for (int64_t i = 0; i < slots; i++)
                to[p][d] = fmaf(weights[p][i],
                                number_at(kind, slot + i * of->value_slot, of->value_size, d),
                                to[p][d]);
}

/* Adds weights x values of consecutive slots for ROWS_OF_VALUES, 3 or 1 pairs. */
#define ADDS(name, kind) \
    static void name(const struct pl_attention *of, int pairs, const char *slot, int64_t slots, \
                     int late, const float *const *weights, float *const *to) { \
        if (pairs == 1) add_slots(of, kind, 1, slot, slots, late, weights, to); \
        else if (pairs == 3) add_slots(of, kind, ROWS_OF_VALUES < 3 ? 1 : 3, slot, slots, late, weights, to); \
        else add_slots(of, kind, ROWS_OF_VALUES, slot, slots, late, weights, to); \
    }
ADDS(add_float32, PL_FLOAT32)
ADDS(add_bfloat16, PL_BFLOAT16)
ADDS(add_float16, PL_FLOAT16)
ADDS(add_int8, PL_INT8)
typedef void (*adds_t)(const struct pl_attention *, int, const char *, int64_t, int,
                       const float *const *, float *const *);
static const adds_t adds[PL_KINDS] = {add_float32, add_bfloat16, add_float16, add_int8};

/* Adds the values of a block to the records of `count` pairs from `p` on. Slots that not all of them
   see are added one pair at a time. */
static void gather(const struct part *part, int count, int64_t p, int64_t block,
                   float *const *to) {
    const struct pl_attention *of = part->of;
    const adds_t add = adds[of->kind];
    const int64_t first = block * PL_BLOCK, stride = of->value_slot;
    const char *slots = part->values + (part->first + first) * stride;
    const float *weights[ROWS_OF_VALUES];
    int64_t begin = 0, end = STRIDE;
    for (int i = 0; i < count; i++) {
        const struct pair *pair = part->pairs + p + i;
        const int64_t last = pair->skipped + among(pair->stretch, block);
        begin = pair->skipped > begin ? pair->skipped : begin;
        end = last < end ? last : end;
        memset(to[i], 0, (size_t)of->value_size * sizeof **to);
    }
    end = end < begin ? begin : end;
    for (int i = 0; i < count; i++) {
        const int64_t from = part->pairs[p + i].skipped;
        const int64_t last = from + among(part->pairs[p + i].stretch, block);
        const float *own = part->at + (p + i) * STRIDE + from;
        weights[i] = own + begin - from;
        if (from < begin)
            add(of, 1, slots + from * stride, (last < begin ? last : begin) - from, 0, &own, to + i);
    }
    if (begin < end) add(of, count, slots + begin * stride, end - begin, part->late, weights, to);
    for (int i = 0; i < count; i++) {
        const struct pair *pair = part->pairs + p + i;
        const int64_t stretch = among(pair->stretch, block), seen = among(pair->seen, block);
        const int64_t last = pair->skipped + stretch;
        const float *own = part->at + (p + i) * STRIDE + end;
        if (end < last) add(of, 1, slots + end * stride, last - end, 0, &own, to + i);
        own = part->at + (p + i) * STRIDE + last;
        for (int64_t j = stretch; j < seen; j++, own++)
            add(of, 1, part->values + pair->extra[first + j - pair->stretch] * stride, 1, 0, &own,
                to + i);
    }
}

static void gather_all(const struct part *part, int64_t block, float *const *to) {
    int64_t p = 0;
    for (; p + ROWS_OF_VALUES <= part->count; p += ROWS_OF_VALUES)
        gather(part, ROWS_OF_VALUES, p, block, to + p);
    for (; ROWS_OF_VALUES > 3 && p + 3 <= part->count; p += 3) gather(part, 3, p, block, to + p);
    for (; p < part->count; p++) gather(part, 1, p, block, to + p);
}

/* Appends the scores of a pair's single slots in a block. They are computed once, for all single slots
   that any pair of the part sees. */
static void pick_singles(struct part *part, int64_t p, int64_t block) {
    const struct pl_attention *of = part->of;
    const struct pair *pair = part->pairs + p;
    const int64_t stretch = among(pair->stretch, block), seen = among(pair->seen, block);
    if (stretch == seen) return;
    if (!part->tail_known)
        score_slots(of, part->keys, NULL, part->count, part->pairs, part->tail,
                    part->tail_end - part->tail, part->room, part->of_tail, tail_stride(of));
    part->tail_known = 1;
    const int32_t *extra = pair->extra + block * PL_BLOCK + stretch - pair->stretch;
    float *to = part->at + p * STRIDE + pair->skipped + stretch;
    for (int64_t i = 0; i < seen - stretch; i++)
        to[i] = part->of_tail[p * tail_stride(of) + extra[i] - part->tail];
}

/* The record of one block for every pair; none for pairs that do not reach it. */
static void take_block(struct part *part, int64_t block, float *const *to, int64_t width) {
    const struct pl_attention *of = part->of;
    int64_t needed = 0;
    for (int64_t p = 0; p < part->count; p++) {
        const struct pair *pair = part->pairs + p;
        const int64_t stretch = among(pair->stretch, block);
        if (stretch && pair->skipped + stretch > needed) needed = pair->skipped + stretch;
    }
    score_slots(of, part->keys, part->late ? NULL : part->values, part->count, part->pairs,
                part->first + block * PL_BLOCK, needed, part->room, part->at, STRIDE);
    for (int64_t p = 0; p < part->count; p++) {
        const struct pair *pair = part->pairs + p;
        const int64_t seen = among(pair->seen, block);
        float *own = part->at + p * STRIDE + pair->skipped;
        if (!seen) continue;
        pick_singles(part, p, block);
        if (of->cap != 0) bend(of->cap, own, seen);
        weigh(own, seen, to[p] + width);
    }
    gather_all(part, block, to);
}
