/* Scores: queries times keys, in the operations of a vec_*.h.

   A score is a sum over a head's size from front to back, whatever is computed beside it. */
#include <string.h>

#include "tier.h"

#define TILE (CHUNKS_OF_SCORES * CHUNK) /* slots whose scores are computed together */
#define IN_TILE (TILE / LANES)

/* A query head of a row. It sees `stretch` slots, from `skipped` slots after the range's first on,
   then those at `extra`; `seen` in total. */
struct pair {
    int64_t row, head, skipped, stretch, seen;
    const int32_t *extra;
};

/* Number `d` of a slot. */
static inline float number_at(int kind, const char *slot, int64_t size, int64_t d) {
    const uint8_t *at = (const uint8_t *)slot;
    float number;
    if (kind == PL_FLOAT16) return pl_half(at + 2 * d);
    if (kind == PL_BFLOAT16) return pl_brain(at + 2 * d);
    if (kind == PL_INT8) {
        memcpy(&number, at + size + d / PL_SCALED * sizeof number, sizeof number);
        return (float)(int8_t)at[d] * number;
    }
    memcpy(&number, at + d * sizeof number, sizeof number);
    return number;
}

/* The numbers of a slot from `d` on, a multiple of LANES. */
INLINE floats_t numbers_at(const int kind, const char *slot, int64_t size, int64_t d) {
    const uint8_t *at = (const uint8_t *)slot;
    if (kind == PL_FLOAT32) return load_floats((const float *)slot + d);
    if (kind == PL_FLOAT16) return halfs(at + 2 * d);
    if (kind == PL_BFLOAT16) return brains(at + 2 * d);
    float scale;
    memcpy(&scale, at + size + d / PL_SCALED * sizeof scale, sizeof scale);
    return times(signed_bytes(at + d), same_floats(scale));
}

/* A slot's numbers as floats. */
INLINE void as_floats(const int kind, const char *slot, int64_t size, float *to) {
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) store_floats(to + d, numbers_at(kind, slot, size, d));
    for (; d < size; d++) to[d] = number_at(kind, slot, size, d);
}

static void slot_as_floats(int kind, const char *slot, int64_t size, float *to) {
    switch (kind) {
    case PL_FLOAT16: as_floats(PL_FLOAT16, slot, size, to); break;
    case PL_BFLOAT16: as_floats(PL_BFLOAT16, slot, size, to); break;
    case PL_INT8: as_floats(PL_INT8, slot, size, to); break;
    default: as_floats(PL_FLOAT32, slot, size, to);
    }
}

/* Sixteen slots as columns of `to` [size, TILE]; 0 for those beyond `count`. wide: room for them as
   rows. */
static void turn_chunk(const struct pl_attention *of, const char *slots, int64_t count,
                       float *wide, float *to) {
    const float *rows[CHUNK];
    for (int64_t j = 0; j < CHUNK; j++) {
        const char *slot = slots + j * of->key_slot;
        float *own = wide + j * of->size;
        rows[j] = own;
        if (j >= count) memset(own, 0, (size_t)of->size * sizeof *own);
        else if (of->kind != PL_FLOAT32) slot_as_floats(of->kind, slot, of->size, own);
        else rows[j] = (const float *)slot;
    }
    int64_t d = 0;
    for (; d + 4 <= of->size; d += 4)
        for (int64_t j = 0; j < CHUNK; j += LANES) {
            const float *some[LANES];
            for (int i = 0; i < LANES; i++) some[i] = rows[j + i] + d;
            turn_four(some, to + d * TILE + j, TILE);
        }
    for (; d < of->size; d++)
        for (int64_t j = 0; j < CHUNK; j++) to[d * TILE + j] = rows[j][d];
}

/* What is fetched while a tile's scores are computed, in whole lines a step; `at` is NULL at the end. */
struct wanted {
    const uint8_t *at, *end;
    int64_t step;
};

/* `slots` from `begin` on in so many steps; nothing if they are far apart or nobody wants them. */
static struct wanted wanted_from(const char *begin, int64_t slot, int64_t size, int64_t steps) {
    if (!begin || slot > 4 * size) return (struct wanted){NULL, NULL, 0};
    const uint8_t *at = (const uint8_t *)begin;
    return (struct wanted){at, at + TILE * slot, (TILE * slot / steps + 63) / 64 * 64};
}

static void go_on(struct wanted *of, int64_t steps) {
    if (of->at && (of->at += steps * of->step) >= of->end) of->at = NULL;
}

/* Adds number `d` of the queries times the keys' to the scores. */
INLINE void add_step(const int count, const float *keys, int64_t d, const float *const *queries,
                     floats_t found[][IN_TILE]) {
    floats_t slots[IN_TILE];
    UNROLL
    for (int v = 0; v < IN_TILE; v++) slots[v] = load_floats(keys + d * TILE + v * LANES);
    UNROLL
    for (int p = 0; p < count; p++) {
        const floats_t query = same_floats(queries[p][d]);
        UNROLL
        for (int v = 0; v < IN_TILE; v++) found[p][v] = times_plus(query, slots[v], found[p][v]);
    }
}

/* Steps between fetches, where one in every step slows the loop. Few pairs wait for memory anyway, and
   fetches in bursts slow that down. */
#ifndef STEPS_OF_SCORES
#define STEPS_OF_SCORES 1
#endif

/* Scores of `count` pairs for a tile of keys [size, TILE], to `to` [count, stride]. few: whether these
   are all there are, or nearly. */
INLINE void scores(const struct pl_attention *of, const int count, const struct pair *pairs,
                   const float *keys, const struct wanted *wanted, const int few, float *to,
                   int64_t stride) {
    const uint8_t *next_keys = wanted[0].at, *values = wanted[1].at;
    floats_t found[ROWS_OF_SCORES][IN_TILE];
    const float *queries[ROWS_OF_SCORES];
    UNROLL
    for (int p = 0; p < count; p++) {
        queries[p] = of->query + pairs[p].head * of->query_head + pairs[p].row * of->query_row;
        UNROLL
        for (int v = 0; v < IN_TILE; v++) found[p][v] = no_floats();
    }
    if (few) {
        for (int64_t d = 0; d < of->size; d++) {
            fetch(&next_keys, wanted[0].step);
            fetch(&values, wanted[1].step);
            add_step(count, keys, d, queries, found);
        }
    } else {
        for (int64_t d = 0; d < of->size;) {
            const int64_t left = of->size - d;
            const int64_t end = d + (left < STEPS_OF_SCORES ? left : STEPS_OF_SCORES);
            fetch(&next_keys, STEPS_OF_SCORES * wanted[0].step);
            fetch(&values, STEPS_OF_SCORES * wanted[1].step);
            for (; d < end; d++) add_step(count, keys, d, queries, found);
        }
    }
    UNROLL
    for (int p = 0; p < count; p++) {
        UNROLL
        for (int v = 0; v < IN_TILE; v++)
            store_floats(to + p * stride + v * LANES,
                         times(found[p][v], same_floats(of->scale)));
    }
}

/* The same for ROWS_OF_SCORES, 3, 2 or 1 pairs. */
INLINE void some_scores(const struct pl_attention *of, int64_t count, const struct pair *pairs,
                        const float *keys, const struct wanted *wanted, const int few, float *to,
                        int64_t stride) {
    if (count == ROWS_OF_SCORES) scores(of, ROWS_OF_SCORES, pairs, keys, wanted, few, to, stride);
#if ROWS_OF_SCORES > 3
    else if (count == 3) scores(of, 3, pairs, keys, wanted, few, to, stride);
#endif
#if ROWS_OF_SCORES > 2
    else if (count == 2) scores(of, 2, pairs, keys, wanted, few, to, stride);
#endif
    else scores(of, 1, pairs, keys, wanted, few, to, stride);
}

/* The same for any number of pairs. room: a tile's keys, then its slots as rows. */
static void score_tile(const struct pl_attention *of, const char *keys, const char *values,
                       int64_t slot, int64_t count, const struct pair *pairs, const float *room,
                       float *to, int64_t stride) {
    const int64_t steps = (count + ROWS_OF_SCORES - 1) / ROWS_OF_SCORES * of->size;
    /* The keys of the next tile, and the values of this one, which are needed soon. */
    struct wanted wanted[] = {
        wanted_from(keys + (slot + TILE) * of->key_slot, of->key_slot, of->size, steps),
        wanted_from(values ? values + slot * of->value_slot : NULL, of->value_slot,
                    of->value_size, steps),
    };
    const int few = STEPS_OF_SCORES == 1 || count <= 2 * ROWS_OF_SCORES;
    for (int64_t some; count; count -= some) {
        some = count >= ROWS_OF_SCORES ? ROWS_OF_SCORES : count >= 3 ? 3 : count;
        if (few) some_scores(of, some, pairs, room, wanted, 1, to, stride);
        else some_scores(of, some, pairs, room, wanted, 0, to, stride);
        pairs += some, to += some * stride;
        go_on(&wanted[0], of->size);
        go_on(&wanted[1], of->size);
    }
}

/* Fetches all keys of the first tile at once: nothing is computed meanwhile. */
static void ask_for_keys(const struct pl_attention *of, const char *keys, int64_t first,
                         int64_t slots) {
    if (of->key_slot > 4 * of->size) return; /* slots are far apart */
    const uint8_t *next = (const uint8_t *)keys + first * of->key_slot;
    fetch(&next, slots * of->key_slot);
}

/* Scores of pairs for `slots` slots from `first` on, [count, stride], written in whole tiles. values:
   of the same slots, if they are needed next. */
static void score_slots(const struct pl_attention *of, const char *keys, const char *values,
                        int64_t count, const struct pair *pairs, int64_t first, int64_t slots,
                        float *room, float *to, int64_t stride) {
    ask_for_keys(of, keys, first, slots < TILE ? slots : TILE);
    for (int64_t i = 0; i < slots; i += TILE) {
        for (int64_t j = 0; j < TILE; j += CHUNK) {
            const int64_t left = slots - i - j;
            turn_chunk(of, keys + (first + i + j) * of->key_slot,
                       left < 0 ? 0 : left < CHUNK ? left : CHUNK, room + TILE * of->size,
                       room + j);
        }
        score_tile(of, keys, values, first + i, count, pairs, room, to + i, stride);
    }
}
