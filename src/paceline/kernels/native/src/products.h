/* Rows times a block of panels of rounded weights.

   For each output and row, groups are added in order, each as
       sum = fma(float(integer sum) * scale, scale of the row, sum)
       sum = fma(offset, sum of the row's group, sum)          if the format has offsets
   so a row has the same bits beside any others, and in every tier. */
#include "some_rows.h"

/* Some groups of a block's weights as the arithmetic takes them. codes: by fours of a group's inputs,
   each of its first half, then of its last. other: scales of second halves. */
enum { READY_GROUPS = 16 };
struct ready {
    bytes_t codes[READY_GROUPS][8][COLUMNS];
    floats_t scale[READY_GROUPS][COLUMNS], other[READY_GROUPS][COLUMNS];
    floats_t offset[READY_GROUPS][COLUMNS];
};

/* Where the columns of a block (vectors of LANES outputs) are: in its panels, or in `ready`. */
struct columns {
    const uint8_t *codes[COLUMNS], *scales[COLUMNS], *supers[COLUMNS];
    const struct ready *ready;
};

INLINE struct columns find_columns(const struct pl_matrix *matrix, const enum pl_format format,
                                   int64_t block) {
    const struct pl_layout at = pl_layouts[format];
    const int64_t groups = pl_groups(matrix->inputs);
    const int half_bytes = format == PL_Q4_K || format == PL_Q5_K || format == PL_Q6_K ? 1 : 2;
    struct columns found;
    found.ready = NULL;
    UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        const int64_t panel = (block * OUTPUTS + (int64_t)c * LANES) / PL_PANEL;
        const int vector = c % VECTORS;
        const uint8_t *begin = panel_at(matrix, format, panel);
        found.codes[c] = begin + 4 * LANES * vector;
        found.scales[c] = begin + groups * at.codes + half_bytes * LANES * vector;
        found.supers[c] = begin + groups * (at.codes + at.scales) + 2 * LANES * vector;
    }
    return found;
}

/* The bits of one group that are stored apart from the other four. */
INLINE void high_bits(const int bits, const struct columns *in, int64_t group,
                      const int code_bytes, const int first, bytes_t high[2][TOGETHER]) {
    if (in->ready) return;
    UNROLL
    for (int t = 0; t < TOGETHER; t++) {
        const uint8_t *at = in->codes[first + t] + group * code_bytes;
        if (bits == 5) high[0][t] = load_bytes(at + 4 * 64);
        if (bits == 6) high[0][t] = load_bytes(at + 4 * 64), high[1][t] = load_bytes(at + 5 * 64);
    }
}

/* Codes 4j ... 4j + 3 of both halves of the group. */
INLINE void find_codes(const int bits, const struct columns *in, int64_t group,
                       const int code_bytes, const int first, const int j,
                       bytes_t high[2][TOGETHER], bytes_t *begin, bytes_t *end) {
    UNROLL
    for (int t = 0; t < TOGETHER; t++) {
        if (in->ready) {
            begin[t] = in->ready->codes[group][2 * j][first + t];
            end[t] = in->ready->codes[group][2 * j + 1][first + t];
            continue;
        }
        const bytes_t both = load_bytes(in->codes[first + t] + group * code_bytes + 64 * j);
        begin[t] = low_half(both), end[t] = high_half(both);
        if (bits == 5) {
            begin[t] = join(begin[t], bit_as_16(high[0][t], j));
            end[t] = join(end[t], bit_as_16(high[0][t], j + 4));
        } else if (bits == 6) {
            begin[t] = join(begin[t], pair_as_16(high[0][t], j));
            end[t] = join(end[t], pair_as_16(high[1][t], j));
        }
    }
}

/* Codes of row `r` of a block. */
INLINE const int8_t *codes_of(const struct pl_four *const *fours, const int r, int64_t group) {
    return fours[r / PL_FOUR][group].codes[r % PL_FOUR];
}

#ifdef BY_PAIRS
#include "pairs.h"
#else
/* The integer sums of one group, for `rows` rows and TOGETHER columns from `first` on. second: of the
   second halves, if these have their own scales. */
INLINE void small_codes(const int bits, const int rows, const struct columns *in, int64_t group,
                        const int code_bytes, const int first, const struct pl_four *const *fours,
                        sums_t sums[][TOGETHER], sums_t second[][TOGETHER]) {
    const int often = DOTS_BEFORE_WIDENING(bits), widens = often <= 8;
    /* Two sets of sums that must be widened do not fit into registers: then half follows half. */
    const int scales = bits == 6 ? 2 : 1, apart = widens && scales == 2;
    part_t part[2][MOST_ROWS][TOGETHER];
    bytes_t high[2][TOGETHER], codes[2][TOGETHER];
    high_bits(bits, in, group, code_bytes, first, high);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int t = 0; t < TOGETHER; t++) {
            part[0][r][t] = widens ? no_part() : sums[r][t];
            part[1][r][t] = widens || scales == 1 ? no_part() : second[r][t];
        }
    }
    UNROLL
    for (int turn = 0; turn < 8; turn++) {
        if (!apart && turn >= 4) continue;
        const int j = turn % 4, dots = (scales == 2 ? 1 : 2) * (j + 1);
        IN_ORDER;
        find_codes(bits, in, group, code_bytes, first, j, high, codes[0], codes[1]);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *here = codes_of(fours, r, group) + 4 * j;
            UNROLL
            for (int t = 0; t < TOGETHER; t++) {
                UNROLL
                for (int half = 0; half < 2; half++) {
                    if (apart && half != turn / 4) continue;
                    part_t *to = &part[scales == 2 ? half : 0][r][t];
                    *to = dot(*to, codes[half][t], here + 16 * half);
                }
            }
        }
        if (j < 3 && dots % often) continue;
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int t = 0; t < TOGETHER; t++) {
                UNROLL
                for (int set = 0; set < 2; set++) {
                    if (set >= scales || (apart && set != turn / 4)) continue;
                    sums_t *to = set ? &second[r][t] : &sums[r][t];
                    *to = widens ? widen(*to, part[set][r][t]) : part[set][r][t];
                    if (widens) part[set][r][t] = no_part();
                }
            }
        }
    }
}

INLINE void large_codes(const int rows, const struct columns *in, int64_t group, const int first,
                        const struct pl_four *const *fours, sums_t sums[][TOGETHER]) {
    UNROLL
    for (int j = 0; j < 8; j++) {
        bytes_t eight[TOGETHER];
        UNROLL
        for (int t = 0; t < TOGETHER; t++)
            eight[t] = signed_codes(load_bytes(in->codes[first + t] + group * 512 + 64 * j));
        UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *here = codes_of(fours, r, group) + 4 * j;
            UNROLL
            for (int t = 0; t < TOGETHER; t++) sums[r][t] = signed_dot(sums[r][t], eight[t], here);
        }
    }
}
#endif

/* Scale and offset of one column's group. second: scale of the second half. */
INLINE void find_scales(const enum pl_format format, const struct columns *in, int64_t group,
                        const int c, floats_t *scale, floats_t *second, floats_t *offset) {
    if (in->ready) {
        *scale = in->ready->scale[group][c], *second = in->ready->other[group][c];
        *offset = in->ready->offset[group][c];
        return;
    }
    const struct pl_layout at = pl_layouts[format];
    const uint8_t *own = in->scales[c] + group * at.scales;
    const uint8_t *units = in->supers[c] + group / PL_SUPER * at.supers;
    if (format == PL_Q4_K || format == PL_Q5_K) {
        *scale = times(halfs(units), unsigned_bytes(own));
        *offset = times(halfs(units + 2 * PL_PANEL), unsigned_bytes(own + PL_PANEL));
    } else if (format == PL_Q6_K) {
        const floats_t unit = halfs(units);
        *scale = times(unit, signed_bytes(own));
        *second = times(unit, signed_bytes(own + PL_PANEL));
    } else {
        *scale = halfs(own);
        if (format == PL_Q4_1 || format == PL_Q5_1) *offset = halfs(own + 2 * PL_PANEL);
    }
}

/* Adds `groups` groups of `rows` rows times a block to `found`. next: weights to fetch meanwhile,
   `fetched` bytes per group. */
INLINE void some_groups(const enum pl_format format, const int rows, const struct columns *in,
                        const struct pl_four *const *fours, int64_t groups, const uint8_t *next,
                        const int fetched, floats_t found[][COLUMNS]) {
    const struct pl_layout at = pl_layouts[format];
    for (int64_t group = 0; group < groups; group++) {
        fetch(&next, fetched);
        UNROLL
        for (int first = 0; first < COLUMNS; first += TOGETHER) {
            IN_ORDER;
            sums_t sums[MOST_ROWS][TOGETHER], second[MOST_ROWS][TOGETHER];
            UNROLL
            for (int r = 0; r < rows; r++) {
                UNROLL
                for (int t = 0; t < TOGETHER; t++) {
                    const struct pl_four *four = fours[r / PL_FOUR] + group;
                    const int zero = at.bits == 8 ? SIGNED_ZERO : at.zero;
                    sums[r][t] = zero ? sums_at(four->start + r % PL_FOUR) : no_sums();
                    if (at.halves) second[r][t] = sums_at(four->second + r % PL_FOUR);
                }
            }
            if (at.bits == 8) large_codes(rows, in, group, first, fours, sums);
            else small_codes(at.bits, rows, in, group, at.codes, first, fours, sums, second);
            UNROLL
            for (int t = 0; t < TOGETHER; t++) {
                const int c = first + t;
                const int minus = format == PL_Q4_K || format == PL_Q5_K;
                const int plus = format == PL_Q4_1 || format == PL_Q5_1;
                floats_t scale, other, offset;
                find_scales(format, in, group, c, &scale, &other, &offset);
                UNROLL
                for (int r = 0; r < rows; r++) {
                    const struct pl_four *four = fours[r / PL_FOUR] + group;
                    const floats_t own = same_floats(four->scale[r % PL_FOUR]);
                    floats_t sum = found[r][c];
                    sum = times_plus(times(to_floats(sums[r][t]), scale), own, sum);
                    if (at.halves)
                        sum = times_plus(times(to_floats(second[r][t]), other), own, sum);
                    const floats_t row_sum = same_floats(four->sum[r % PL_FOUR]);
                    if (plus) sum = times_plus(offset, row_sum, sum);
                    if (minus) sum = minus_times_plus(offset, row_sum, sum);
                    found[r][c] = sum;
                }
            }
        }
    }
}

/* Bytes to fetch per group. */
#define FETCHED(at) (OUTPUTS / PL_PANEL * ((at).codes + (at).scales + (at).supers / PL_SUPER))

/* `rows` rows from `place` on times the panels of one block. */
INLINE void one_block(const enum pl_format format, const int rows, const struct pl_work *work,
                      int64_t block, int64_t place, const uint8_t *next) {
    const struct columns columns = find_columns(work->matrix, format, block);
    const struct pl_four *fours[MOST_ROWS / PL_FOUR];
    floats_t found[MOST_ROWS][COLUMNS];
    UNROLL
    for (int r = 0; r < rows; r += PL_FOUR) fours[r / PL_FOUR] = pl_four_of(work->rows, place + r);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) found[r][c] = no_floats();
    }
    some_groups(format, rows, &columns, fours, work->rows->groups, next,
                FETCHED(pl_layouts[format]), found);
    UNROLL
    for (int r = 0; r < rows; r++) write_block(work, COLUMNS, block, place + r, found[r]);
}

#define BLOCK_ROWS(format, rows) ROWS_WITH(one_block, format, rows)
#define SIMPLE(format) UP_TO(MOST_ROWS)(BLOCK_ROWS, format) \
    RUN_WITH(format, MOST_ROWS, PL_FOUR, OUTPUTS / PL_PANEL)
/* Formats whose weights take long to make ready. */
#ifdef READY_FROM
#include "ready.h"
#define COMPLEX(format) UP_TO(MOST_ROWS)(BLOCK_ROWS, format) RUN_READY(format)
#else
#define COMPLEX SIMPLE
#endif
SIMPLE(PL_Q4_0)
SIMPLE(PL_Q4_1)
SIMPLE(PL_Q8_0)
COMPLEX(PL_Q5_0)
COMPLEX(PL_Q5_1)
COMPLEX(PL_Q4_K)
COMPLEX(PL_Q5_K)
COMPLEX(PL_Q6_K)
