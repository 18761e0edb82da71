/* Attention in units that threads share. */
#include <stdlib.h>

#include "api.h"
#include "threads.h"
#include "program.h"

struct attending {
    const struct pl_tier *tier;
    const struct pl_attention *of;
};

static void some_units(void *given, int64_t first, int64_t end) {
    const struct attending *attending = given;
    attending->tier->attend(attending->of, first, end);
}

/* Rows of a range, so that a unit has work for a while and fits into the caches. */
enum { HEADS_OF_A_UNIT = 48, SLOTS_APART = 64 };

/* Whether sizes make sense, and slots come in their order. */
static int is_sound(const struct pl_attention *of) {
    if (of->rows < 0 || of->heads < 1 || of->key_heads < 1 || of->heads % of->key_heads) return 0;
    if (of->heads / of->key_heads > HEADS_OF_A_UNIT || of->size < 1) return 0;
    if (of->value_size < 1 || of->kind < 0 || of->kind > PL_FLOAT16) return 0;
    for (int64_t row = 0; row < of->rows; row++) {
        const int32_t begin = of->extra_begin[row], end = of->extra_begin[row + 1];
        int64_t last = (int64_t)of->first[row] + of->count[row] - 1;
        if (of->count[row] < 0 || of->first[row] < 0 || end < begin) return 0;
        if (of->count[row] + (end - begin) < 1) return 0;
        for (int32_t i = begin; i < end; last = of->extra[i++])
            if (of->extra[i] <= last) return 0;
    }
    return 1;
}

/* Fills `ranges` [at least rows + 1] with stretches of rows that begin at nearly one slot; how many
   there are. */
static int64_t find_ranges(const struct pl_attention *of, int64_t *ranges, int64_t *longest) {
    const int64_t most = HEADS_OF_A_UNIT / (of->heads / of->key_heads);
    int64_t count = 0;
    *longest = 0;
    for (int64_t row = 0; row < of->rows; row++) {
        const int32_t begin = of->extra_begin[row], end = of->extra_begin[row + 1];
        const int64_t first = of->first[row];
        const int64_t last = end > begin ? of->extra[end - 1] + 1 : first + of->count[row];
        const int64_t known = count ? of->first[ranges[count - 1]] : 0;
        if (!count || row - ranges[count - 1] == most || first < of->first[row - 1] ||
            first - known > SLOTS_APART)
            ranges[count++] = row;
        const int64_t needed = last - of->first[ranges[count - 1]];
        *longest = needed > *longest ? needed : *longest;
    }
    ranges[count] = of->rows;
    return count;
}

int64_t pl_attention_units(struct pl_attention *of, int64_t *ranges) {
    if (!is_sound(of)) return -1;
    of->ranges = ranges;
    return find_ranges(of, ranges, &of->longest) * of->key_heads;
}

PL_API int pl_attend(const struct pl_attention *given, int threads) {
    struct pl_attention of = *given;
    if (of.rows < 0) return PL_BAD_ARGUMENT;
    int64_t *ranges = malloc(sizeof *ranges * (size_t)(of.rows + 1));
    if (!ranges) return PL_NO_MEMORY;
    int failed = 0;
    const int64_t units = pl_attention_units(&of, ranges);
    of.failed = &failed;
    struct attending attending = {pl_current_tier(), &of};
    if (units > 0) pl_in_pieces(some_units, &attending, units, 1, threads);
    free(ranges);
    return units < 0 ? PL_BAD_ARGUMENT : failed ? PL_NO_MEMORY : PL_OK;
}
