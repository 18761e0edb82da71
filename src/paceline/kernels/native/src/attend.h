/* Attention of a few rows over a long text, in the words of a vec_*.h.

   A row sees a stretch of slots (`first`, `count`) and after it single ones (`extra`): the text, and
   its own path through a tree. Scores, weights and values are taken in this order, a number over a
   head's size from front to back, so a row's result does not depend on where its path lies in the
   cache, nor on other rows: a token is worth the same bits in a tree, in a chain and alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tier.h"

enum { CHUNK = 16, PAIRS = 48 };
#define IN_CHUNK (CHUNK / LANES)
/* Vectors of values that are added up together. */
#define WIDE 4

/* A query head of a row. */
struct pair {
    int64_t row, head, seen;
    int64_t skipped; /* slots of the unit before its first one */
};

static inline float key_at(const struct pl_attention *of, const char *slot, int64_t d) {
    if (of->kind == PL_FLOAT32) return ((const float *)slot)[d];
    const uint8_t *two = (const uint8_t *)slot + 2 * d;
    if (of->kind == PL_FLOAT16) return pl_half(two);
    const uint32_t bits = (uint32_t)two[0] << 16 | (uint32_t)two[1] << 24;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Sixteen slots of floats to [size, 16], as many of their numbers as there are whole fours of. */
static int64_t turn_slots(const struct pl_attention *of, const char *slots, float *to) {
    int64_t d = 0;
    for (; d + 4 <= of->size; d += 4)
        for (int64_t j = 0; j < CHUNK; j += 4) {
            const float *rows[4];
            for (int i = 0; i < 4; i++)
                rows[i] = (const float *)(slots + (j + i) * of->key_slot) + d;
            turn_four(rows, to + d * CHUNK + j, CHUNK);
        }
    return d;
}

/* Slots from `first` on, `count` of them, to [size, 16]; the rest is 0. */
static void transpose(const struct pl_attention *of, const char *keys, int64_t first,
                      int64_t count, float *to) {
    int64_t begin = 0;
    if (count >= CHUNK && of->kind == PL_FLOAT32)
        begin = turn_slots(of, keys + first * of->key_slot, to);
    for (int64_t j = 0; j < CHUNK && begin < of->size; j++) {
        const char *slot = keys + (first + j) * of->key_slot;
        if (j >= count)
            for (int64_t d = begin; d < of->size; d++) to[d * CHUNK + j] = 0;
        else
            for (int64_t d = begin; d < of->size; d++) to[d * CHUNK + j] = key_at(of, slot, d);
    }
}

/* Scores of `count` pairs for one chunk of keys, [count, stride] from `to` on. */
INLINE void scores(const struct pl_attention *of, const int count, const struct pair *pairs,
                   const float *keys, float *to, int64_t stride) {
    floats_t found[ROWS_OF_SCORES][IN_CHUNK];
    const float *queries[ROWS_OF_SCORES];
    UNROLL
    for (int p = 0; p < count; p++) {
        queries[p] = of->query + pairs[p].head * of->query_head + pairs[p].row * of->query_row;
        UNROLL
        for (int v = 0; v < IN_CHUNK; v++) found[p][v] = no_floats();
    }
    for (int64_t d = 0; d < of->size; d++) {
        UNROLL
        for (int p = 0; p < count; p++) {
            const floats_t query = same_floats(queries[p][d]);
            UNROLL
            for (int v = 0; v < IN_CHUNK; v++)
                found[p][v] =
                    times_plus(query, load_floats(keys + d * CHUNK + v * LANES), found[p][v]);
        }
    }
    UNROLL
    for (int p = 0; p < count; p++) {
        UNROLL
        for (int v = 0; v < IN_CHUNK; v++)
            store_floats(to + p * stride + v * LANES,
                         times(found[p][v], same_floats(of->scale)));
    }
}

/* e to the power of x, for x of at most 0; 0 below -87. */
INLINE floats_t power_of_e(floats_t x) {
    const floats_t rounding = same_floats(0x1.8p23f);
    const floats_t kept = largest(x, same_floats(-87.0f));
    const floats_t twos = minus(times_plus(kept, same_floats(0x1.715476p0f), rounding), rounding);
    floats_t rest = times_plus(twos, same_floats(-0x1.62e400p-1f), kept);
    rest = times_plus(twos, same_floats(-0x1.7f7d1cp-20f), rest);
    floats_t sum = same_floats(0x1.6850e4p-10f);
    sum = times_plus(sum, rest, same_floats(0x1.123bccp-7f));
    sum = times_plus(sum, rest, same_floats(0x1.555b98p-5f));
    sum = times_plus(sum, rest, same_floats(0x1.55548ep-3f));
    sum = times_plus(sum, rest, same_floats(0x1.fffff8p-2f));
    sum = times_plus(sum, rest, same_floats(1.0f));
    sum = times_plus(sum, rest, same_floats(1.0f));
    /* x - x keeps what is no number. */
    return where_above(x, same_floats(-87.0f), plus(times_two_to(sum, twos), minus(x, x)));
}

/* Scores are bent so that none is larger than the cap. */
static void bend(float cap, float *at, int64_t count) {
    for (int64_t i = 0; i < count; i++) at[i] = cap * tanhf(at[i] / cap);
}

/* Scores [count] -> weights before they are divided by their sum, which is returned. `at` has room
   for a multiple of 16. */
static float weigh(float *at, int64_t count) {
    const int64_t whole = (count + CHUNK - 1) / CHUNK * CHUNK;
    for (int64_t i = count; i < whole; i++) at[i] = -INFINITY;
    floats_t most[IN_CHUNK], sums[IN_CHUNK];
    float lanes[CHUNK];
    for (int v = 0; v < IN_CHUNK; v++) most[v] = same_floats(-INFINITY), sums[v] = no_floats();
    for (int64_t i = 0; i < whole; i += CHUNK)
        for (int v = 0; v < IN_CHUNK; v++)
            most[v] = largest(load_floats(at + i + v * LANES), most[v]);
    for (int v = 0; v < IN_CHUNK; v++) store_floats(lanes + v * LANES, most[v]);
    float top = lanes[0];
    for (int j = 1; j < CHUNK; j++) top = lanes[j] > top ? lanes[j] : top;
    for (int64_t i = 0; i < whole; i += CHUNK)
        for (int v = 0; v < IN_CHUNK; v++) {
            float *here = at + i + v * LANES;
            const floats_t weight = power_of_e(minus(load_floats(here), same_floats(top)));
            store_floats(here, weight);
            sums[v] = plus(sums[v], weight);
        }
    for (int v = 0; v < IN_CHUNK; v++) store_floats(lanes + v * LANES, sums[v]);
    for (int step = CHUNK / 2; step; step /= 2)
        for (int j = 0; j < step; j++) lanes[j] += lanes[j + step];
    return lanes[0];
}

INLINE floats_t load_values(const struct pl_attention *of, const char *slot, int64_t d) {
    if (of->kind == PL_FLOAT32) return load_floats((const float *)slot + d);
    if (of->kind == PL_FLOAT16) return halfs((const uint8_t *)slot + 2 * d);
    float some[LANES];
    for (int i = 0; i < LANES; i++) some[i] = key_at(of, slot, d + i);
    return load_floats(some);
}

/* Where value number `i` of a pair is. */
static inline const char *slot_of(const struct pl_attention *of, const char *values, int64_t row,
                                  int64_t i) {
    const int64_t stretch = of->count[row];
    const int64_t slot = i < stretch ? of->first[row] + i
                                     : of->extra[of->extra_begin[row] + i - stretch];
    return values + slot * of->value_slot;
}

/* Adds weight x values of one slot to the sums of `pairs` pairs, `wide` vectors from `d` on. */
INLINE void add_slot(const struct pl_attention *of, const int pairs, const int wide,
                     const char *slot, int64_t d, const float *const *weights, int64_t i,
                     floats_t sums[][WIDE]) {
    floats_t values[WIDE];
    UNROLL
    for (int v = 0; v < wide; v++) values[v] = load_values(of, slot, d + v * LANES);
    UNROLL
    for (int p = 0; p < pairs; p++) {
        const floats_t weight = same_floats(weights[p][i]);
        UNROLL
        for (int v = 0; v < wide; v++) sums[p][v] = times_plus(weight, values[v], sums[p][v]);
    }
}

/* What pairs take from the values: `wide` vectors from `d` on. */
INLINE void gather_vectors(const struct pl_attention *of, const int count, const int wide,
                           const struct pair *pairs, const char *values, int64_t shared,
                           const float *const *weights, const float *totals, int64_t d) {
    floats_t sums[ROWS_OF_VALUES][WIDE];
    UNROLL
    for (int p = 0; p < count; p++) {
        UNROLL
        for (int v = 0; v < wide; v++) sums[p][v] = no_floats();
    }
    const char *slot = values + of->first[pairs[0].row] * of->value_slot;
    for (int64_t i = 0; i < shared; i++, slot += of->value_slot)
        add_slot(of, count, wide, slot, d, weights, i, sums);
    UNROLL
    for (int p = 0; p < count; p++) {
        for (int64_t i = shared; i < pairs[p].seen; i++)
            add_slot(of, 1, wide, slot_of(of, values, pairs[p].row, i), d, weights + p, i,
                     sums + p);
        float *to = of->out + (pairs[p].row * of->heads + pairs[p].head) * of->value_size + d;
        UNROLL
        for (int v = 0; v < wide; v++)
            store_floats(to + v * LANES, times(sums[p][v], same_floats(1.0f / totals[p])));
    }
}

/* What `count` pairs take from the values. weights [count, stride]. */
INLINE void gather(const struct pl_attention *of, const int count, const struct pair *pairs,
                   const char *values, const float *weights, int64_t stride,
                   const float *totals) {
    const float *own[ROWS_OF_VALUES];
    int64_t d = 0, shared = of->count[pairs[0].row];
    UNROLL
    for (int p = 0; p < count; p++) {
        own[p] = weights + p * stride + pairs[p].skipped;
        shared = of->count[pairs[p].row] < shared ? of->count[pairs[p].row] : shared;
        if (pairs[p].skipped != pairs[0].skipped) shared = 0;
    }
    for (; d + WIDE * LANES <= of->value_size; d += WIDE * LANES)
        gather_vectors(of, count, WIDE, pairs, values, shared, own, totals, d);
    for (; d + LANES <= of->value_size; d += LANES)
        gather_vectors(of, count, 1, pairs, values, shared, own, totals, d);
    for (; d < of->value_size; d++)
        for (int p = 0; p < count; p++) {
            float sum = 0;
            for (int64_t i = 0; i < pairs[p].seen; i++)
                sum = fmaf(own[p][i], key_at(of, slot_of(of, values, pairs[p].row, i), d), sum);
            of->out[(pairs[p].row * of->heads + pairs[p].head) * of->value_size + d] =
                sum * (1.0f / totals[p]);
        }
}

/* The slots that a row needs scores for, from its `first` on. */
static int64_t reach(const struct pl_attention *of, int64_t row) {
    const int64_t begin = of->extra_begin[row], end = of->extra_begin[row + 1];
    const int64_t last = end > begin ? (int64_t)of->extra[end - 1] + 1 - of->first[row] : 0;
    return last > of->count[row] ? last : of->count[row];
}

/* One unit: rows [begin, end) with the query heads of one key head. */
static void one_unit(const struct pl_attention *of, int64_t head, int64_t begin, int64_t end,
                     float *room) {
    const int64_t together = of->heads / of->key_heads, first = of->first[begin];
    const char *keys = (const char *)of->keys + head * of->key_head;
    const char *values = (const char *)of->values + head * of->value_head;
    struct pair pairs[PAIRS];
    int64_t count = 0, most = 0, reaches[PAIRS];
    for (int64_t row = begin; row < end; row++)
        for (int64_t h = 0; h < together; h++, count++) {
            const int64_t extras = of->extra_begin[row + 1] - of->extra_begin[row];
            const int64_t skipped = of->first[row] - first;
            pairs[count] =
                (struct pair){row, head * together + h, of->count[row] + extras, skipped};
            reaches[count] = skipped + reach(of, row);
            most = reaches[count] > most ? reaches[count] : most;
        }
    const int64_t stride = (most + 2 * CHUNK - 1) / CHUNK * CHUNK;
    float *chunk = room, *at = room + of->size * CHUNK, totals[PAIRS];
    for (int64_t i = 0; i < most; i += CHUNK) {
        transpose(of, keys, first + i, most - i, chunk);
        for (int64_t p = 0; p < count; p += ROWS_OF_SCORES) {
            const int64_t left = count - p;
            int64_t needed = 0;
            for (int64_t q = p; q < p + ROWS_OF_SCORES && q < count; q++)
                needed = reaches[q] > needed ? reaches[q] : needed;
            if (needed <= i) continue;
            float *to = at + p * stride + i;
            if (left >= ROWS_OF_SCORES) scores(of, ROWS_OF_SCORES, pairs + p, chunk, to, stride);
            else
                for (int64_t q = 0; q < left; q++)
                    scores(of, 1, pairs + p + q, chunk, to + q * stride, stride);
        }
    }
    for (int64_t p = 0; p < count; p++) {
        const int64_t row = pairs[p].row, stretch = of->count[row];
        float *own = at + p * stride + pairs[p].skipped;
        for (int64_t i = stretch; i < pairs[p].seen; i++)
            own[i] = own[of->extra[of->extra_begin[row] + i - stretch] - of->first[row]];
        if (of->cap != 0) bend(of->cap, own, pairs[p].seen);
        totals[p] = weigh(own, pairs[p].seen);
    }
    int64_t p = 0;
    for (; p + ROWS_OF_VALUES <= count; p += ROWS_OF_VALUES)
        gather(of, ROWS_OF_VALUES, pairs + p, values, at + p * stride, stride, totals + p);
    for (; p < count; p++) gather(of, 1, pairs + p, values, at + p * stride, stride, totals + p);
}

/* Units from `first_unit` up to `end_unit`: row ranges times key heads. */
static void attend(const struct pl_attention *of, int64_t first_unit, int64_t end_unit) {
    /* Rows of 16 scores beyond what is seen are room for whole chunks. */
    const int64_t most = (of->longest + 2 * CHUNK - 1) / CHUNK * CHUNK;
    float *room = malloc(sizeof(float) * (size_t)(of->size * CHUNK + PAIRS * most));
    if (!room) {
        *of->failed = 1;
        return;
    }
    for (int64_t unit = first_unit; unit < end_unit; unit++) {
        const int64_t range = unit / of->key_heads, head = unit % of->key_heads;
        one_unit(of, head, of->ranges[range], of->ranges[range + 1], room);
    }
    free(room);
}
