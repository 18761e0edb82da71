/* Products of many rows: some groups of a block's weights are made ready once, then used for four rows
   after the other. Sums of a row are kept meanwhile, so groups are added in the same order. */

#include <string.h>

/* Rows whose sums are kept together. */
enum { READY_ROWS = 256 };

INLINE void make_ready(const enum pl_format format, const struct columns *in, int64_t first,
                       int64_t groups, const uint8_t *next, struct ready *to) {
    const struct pl_layout at = pl_layouts[format];
    for (int64_t g = 0; g < groups; g++) {
        fetch(&next, FETCHED(at));
        UNROLL
        for (int c = 0; c < COLUMNS; c += TOGETHER) {
            bytes_t high[2][TOGETHER], begin[TOGETHER], end[TOGETHER];
            high_bits(at.bits, in, first + g, at.codes, c, high);
            UNROLL
            for (int j = 0; j < 4; j++) {
                find_codes(at.bits, in, first + g, at.codes, c, j, high, begin, end);
                UNROLL
                for (int t = 0; t < TOGETHER; t++) {
                    to->codes[g][2 * j][c + t] = begin[t];
                    to->codes[g][2 * j + 1][c + t] = end[t];
                }
            }
        }
        UNROLL
        for (int c = 0; c < COLUMNS; c++)
            find_scales(format, in, first + g, c, to->scale[g] + c, to->other[g] + c,
                        to->offset[g] + c);
    }
}

/* Adds `groups` groups of four rows times the ready weights to their sums. */
INLINE void four_rows(const enum pl_format format, const struct ready *ready,
                      const struct pl_four *four, int64_t groups, floats_t sums[PL_FOUR][COLUMNS]) {
    struct columns columns = {.ready = ready};
    floats_t found[PL_FOUR][COLUMNS];
    UNROLL
    for (int r = 0; r < PL_FOUR; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) found[r][c] = sums[r][c];
    }
    some_groups(format, PL_FOUR, &columns, &four, groups, NULL, 0, found);
    UNROLL
    for (int r = 0; r < PL_FOUR; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = found[r][c];
    }
}

typedef void makes_ready(const struct columns *in, int64_t first, int64_t groups,
                         const uint8_t *next, struct ready *to);
typedef void takes_ready(const struct ready *ready, const struct pl_four *four, int64_t groups,
                         floats_t sums[PL_FOUR][COLUMNS]);

/* One block for whole fours of rows, at most READY_ROWS, from `place` on. */
static void ready_block(makes_ready *make, takes_ready *take, const struct columns *in,
                        const struct pl_work *work, int64_t block, int64_t place, int64_t rows,
                        const uint8_t *next, const int fetched) {
    struct ready ready;
    floats_t sums[READY_ROWS][COLUMNS];
    memset(sums, 0, (size_t)rows * sizeof *sums);
    for (int64_t first = 0; first < work->rows->groups; first += READY_GROUPS) {
        const int64_t left = work->rows->groups - first;
        const int64_t groups = left < READY_GROUPS ? left : READY_GROUPS;
        make(in, first, groups, next, &ready);
        next = next ? next + groups * fetched : NULL;
        for (int64_t r = 0; r < rows; r += PL_FOUR)
            take(&ready, pl_four_of(work->rows, place + r) + first, groups, sums + r);
    }
    for (int64_t r = 0; r < rows; r++) write_block(work, COLUMNS, block, place + r, sums[r]);
}

static void ready_blocks(enum pl_format format, makes_ready *make, takes_ready *take,
                         some_rows *const *of, const struct pl_work *work, int64_t first,
                         int64_t end) {
    const int64_t rows = work->end_row - work->first_row, whole = rows / PL_FOUR * PL_FOUR;
    const struct ahead ahead = ahead_of(work, OUTPUTS / PL_PANEL);
    const int fetched = FETCHED(pl_layouts[format]);
    for (int64_t block = first; block < end; block++) {
        const struct columns columns = find_columns(work->matrix, format, block);
        for (int64_t r = 0, some; r < whole; r += some) {
            some = whole - r < READY_ROWS ? whole - r : READY_ROWS;
            ready_block(make, take, &columns, work, block, work->first_row + r, some,
                        r ? NULL : fetched_in(work, &ahead, block), fetched);
        }
        if (whole < rows) of[rows - whole - 1](work, block, work->first_row + whole, NULL);
    }
}

#define RUN_READY(format) \
    static __attribute__((noinline)) void make_##format(const struct columns *in, int64_t first, \
                                                        int64_t groups, const uint8_t *next, \
                                                        struct ready *to) { \
        make_ready(format, in, first, groups, next, to); \
    } \
    static __attribute__((noinline)) void take_##format( \
        const struct ready *ready, const struct pl_four *four, int64_t groups, \
        floats_t sums[PL_FOUR][COLUMNS]) { \
        four_rows(format, ready, four, groups, sums); \
    } \
    static void run_##format(const struct pl_work *work, int64_t first, int64_t end) { \
        static some_rows *const of[] = {UP_TO(MOST_ROWS)(NAME_OF, format)}; \
        if (work->end_row - work->first_row < READY_FROM(pl_layouts[format].bits)) \
            all_rows(of, MOST_ROWS, PL_FOUR, OUTPUTS / PL_PANEL, work, first, end); \
        else ready_blocks(format, make_##format, take_##format, of, work, first, end); \
    }
