/* Attention in units, for several threads. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "threads.h"
#include "program.h"

struct attending {
    const struct pl_tier *tier;
    const struct pl_attention *of;
    const struct pl_sharing *needed;
    void *shared;
};

static void some_units(void *given, int me, const struct pl_taken *taken) {
    const struct attending *at = given;
    at->tier->rest->attend(at->of, taken->first, taken->end, pl_room_of(at->needed, at->shared, me));
}

/* Parts per thread, so that none waits for long; floats of records that parts may take: 64 MiB; pairs
   of a row and a head that are worth reading keys again. */
enum { PARTS_EACH = 4, MOST_RECORDS = 16 << 20, LEAST_PAIRS = 12 };

static int64_t seen_by(const struct pl_attention *of, int64_t row) {
    return (int64_t)of->count[row] + of->extra_begin[row + 1] - of->extra_begin[row];
}

static int64_t blocks_of(const struct pl_attention *of, int64_t row) {
    return (seen_by(of, row) + PL_BLOCK - 1) / PL_BLOCK;
}

/* Whether sizes make sense, and slots are in order. */
static int is_sound(const struct pl_attention *of) {
    if (of->rows < 0 || of->heads < 1 || of->key_heads < 1 || of->heads % of->key_heads) return 0;
    if (of->heads / of->key_heads > PL_HEADS_OF_A_RANGE || of->size < 1) return 0;
    if (of->value_size < 1 || of->kind < 0 || of->kind >= PL_KINDS) return 0;
    for (int64_t row = 0; row < of->rows; row++) {
        const int32_t begin = of->extra_begin[row], end = of->extra_begin[row + 1];
        int64_t last = (int64_t)of->first[row] + of->count[row] - 1;
        if (of->count[row] < 0 || of->first[row] < 0 || end < begin) return 0;
        if (seen_by(of, row) < 1) return 0;
        for (int32_t i = begin; i < end; last = of->extra[i++])
            if (of->extra[i] <= last) return 0;
    }
    return 1;
}

/* Fills `ranges` with runs of at most `most` rows that begin at nearly the same slot; returns how
   many. */
static int64_t find_ranges(struct pl_attention *of, int64_t most, struct pl_range *ranges) {
    int64_t count = 0, from = 0, to = 0;
    of->tail = 0;
    for (int64_t row = 0; row < of->rows; row++) {
        const int32_t begin = of->extra_begin[row], end = of->extra_begin[row + 1];
        const int64_t first = of->first[row], known = count ? of->first[ranges[count - 1].row] : 0;
        if (!count || row - ranges[count - 1].row == most || first < of->first[row - 1] ||
            first - known > PL_SLOTS_APART) {
            ranges[count++] = (struct pl_range){.row = row};
            from = to = 0;
        }
        struct pl_range *range = ranges + count - 1;
        const int64_t blocks = blocks_of(of, row);
        range->blocks = blocks > range->blocks ? blocks : range->blocks;
        if (begin == end) continue;
        from = to && from < of->extra[begin] ? from : of->extra[begin];
        to = to > of->extra[end - 1] + 1 ? to : of->extra[end - 1] + 1;
        of->tail = to - from > of->tail ? to - from : of->tail;
    }
    ranges[count].row = of->rows;
    return count;
}

static int64_t common_divisor(int64_t one, int64_t other) {
    while (other) {
        const int64_t rest = one % other;
        one = other, other = rest;
    }
    return one;
}

/* Rows of a range. A few blocks of heads that do not divide evenly leave threads idle, and what each has
   found in a row must be joined. With enough rows, threads get whole ranges instead, several each: then
   *whole is 1. */
static int64_t rows_of_range(const struct pl_attention *of, int threads, int *whole) {
    const int64_t together = of->heads / of->key_heads, most = PL_HEADS_OF_A_RANGE / together;
    const int64_t ranges = threads < 2 ? 1 : threads / common_divisor(threads, of->key_heads);
    const int64_t rows = (of->rows + ranges - 1) / ranges;
    int64_t blocks = 0;
    for (int64_t row = 0; row < of->rows; row++)
        if (blocks_of(of, row) > blocks) blocks = blocks_of(of, row);
    *whole = ranges > 1 && ranges * of->key_heads > threads && rows * together >= LEAST_PAIRS &&
             blocks * of->key_heads < PARTS_EACH * threads;
    return *whole && rows < most ? rows : most;
}

int64_t pl_plan_attention(const struct pl_tier *tier, struct pl_attention *of,
                          struct pl_range *ranges, int threads, struct pl_sharing *needed) {
    *needed = (struct pl_sharing){0, 0, 0};
    if (!is_sound(of)) return -1;
    int whole;
    const int64_t count = find_ranges(of, rows_of_range(of, threads, &whole), ranges);
    const int64_t record = (of->value_size + 15) / 16 * 16 + 16;
    int64_t blocks = 0, records = 0, unit = 0;
    for (int64_t i = 0; i < count; i++) {
        blocks += ranges[i].blocks;
        records += (ranges[i + 1].row - ranges[i].row) * of->heads * ranges[i].blocks * record;
    }
    of->ranges = ranges;
    /* Parts only balance threads: with a range for each, they are not worth that many records. */
    whole |= threads < 2 || (records > MOST_RECORDS && count * of->key_heads >= (int64_t)threads);
    of->part = whole ? blocks : blocks * of->key_heads / (PARTS_EACH * threads);
    if (of->part < 1) of->part = 1;
    for (int64_t i = 0; i < count; i++) {
        struct pl_range *range = ranges + i;
        range->unit = unit, range->partial = needed->records;
        range->parts = (range->blocks + of->part - 1) / of->part;
        unit += range->parts * of->key_heads;
        if (range->parts > 1)
            needed->records += (range[1].row - range->row) * of->heads * range->blocks * record;
    }
    ranges[count].unit = unit;
    needed->counts = count * of->key_heads;
    needed->room = (tier->rest->attend_room(of) + 15) / 16 * 16;
    return unit;
}

void *pl_share(const struct pl_sharing *needed, int threads) {
    const size_t counts = (size_t)needed->counts * sizeof(int);
    const size_t floats = (size_t)(needed->records + needed->room * threads) * sizeof(float);
    char *memory = malloc(counts + floats + 64);
    if (memory) memset(memory, 0, counts);
    return memory;
}

/* After the counts, from the start of a cache line: the rooms of threads, then records. */
float *pl_room_of(const struct pl_sharing *needed, void *memory, int me) {
    const uintptr_t begin = (uintptr_t)memory + (size_t)needed->counts * sizeof(int);
    return (float *)((begin + 63) / 64 * 64) + me * needed->room;
}

void pl_use_shared(struct pl_attention *of, const struct pl_sharing *needed, int threads,
                   void *memory) {
    of->done = memory;
    of->partial = pl_room_of(needed, memory, threads);
}

PL_API int pl_attend(const struct pl_attention *given, int threads) {
    struct pl_attention of = *given;
    struct pl_sharing needed;
    if (of.rows < 0) return PL_BAD_ARGUMENT;
    struct pl_range *ranges = malloc(sizeof *ranges * (size_t)(of.rows + 1));
    if (!ranges) return PL_NO_MEMORY;
    const struct pl_tier *tier = pl_current_tier();
    const int64_t units = pl_plan_attention(tier, &of, ranges, threads, &needed);
    void *shared = units > 0 ? pl_share(&needed, threads) : NULL;
    if (shared) {
        pl_use_shared(&of, &needed, threads, shared);
        struct attending attending = {tier, &of, &needed, shared};
        pl_in_shares(some_units, &attending, units, 1, threads);
    }
    free(shared);
    free(ranges);
    return units < 0 ? PL_BAD_ARGUMENT : units > 0 && !shared ? PL_NO_MEMORY : PL_OK;
}
