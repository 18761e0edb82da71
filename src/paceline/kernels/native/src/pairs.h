/* Integer sums of a group, if the processor multiplies two rows by two outputs at a time. */
#define MOST_PAIRS ((MOST_ROWS + 1) / 2)

/* Eight numbers of two rows; the last of an odd number of rows is taken twice. */
INLINE bytes_t eight_of_two(const int rows, const int p, const struct pl_four *const *fours,
                            int64_t group, int at) {
    const int last = 2 * p + 1 < rows ? 2 * p + 1 : 2 * p;
    return two_rows(codes_of(fours, 2 * p, group) + at, codes_of(fours, last, group) + at);
}

INLINE void add_pair(const int rows, const int p, const int t, const pairs_t part,
                     sums_t sums[][TOGETHER]) {
    sums[2 * p][t] = widen(sums[2 * p][t], of_first(part));
    if (2 * p + 1 < rows) sums[2 * p + 1][t] = widen(sums[2 * p + 1][t], of_other(part));
}

/* See products.h. */
INLINE void small_codes(const int bits, const int rows, const struct columns *in, int64_t group,
                        const int code_bytes, const int first, const struct pl_four *const *fours,
                        sums_t sums[][TOGETHER], sums_t second[][TOGETHER]) {
    const int pairs = (rows + 1) / 2;
    pairs_t part[MOST_PAIRS][TOGETHER], other[MOST_PAIRS][TOGETHER];
    bytes_t high[2][TOGETHER];
    high_bits(bits, in, group, code_bytes, first, high);
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int t = 0; t < TOGETHER; t++) part[p][t] = other[p][t] = no_pairs();
    }
    UNROLL
    for (int j = 0; j < 4; j += 2) {
        bytes_t begin[2][TOGETHER], end[2][TOGETHER];
        IN_ORDER;
        find_codes(bits, in, group, code_bytes, first, j, high, begin[0], end[0]);
        find_codes(bits, in, group, code_bytes, first, j + 1, high, begin[1], end[1]);
        UNROLL
        for (int p = 0; p < pairs; p++) {
            const bytes_t here = eight_of_two(rows, p, fours, group, 4 * j);
            const bytes_t there = eight_of_two(rows, p, fours, group, 4 * j + 16);
            UNROLL
            for (int t = 0; t < TOGETHER; t++) {
                part[p][t] = pair_dot(part[p][t], begin[0][t], begin[1][t], here);
                if (bits == 6)
                    other[p][t] = pair_dot(other[p][t], end[0][t], end[1][t], there);
                else part[p][t] = pair_dot(part[p][t], end[0][t], end[1][t], there);
            }
        }
    }
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int t = 0; t < TOGETHER; t++) {
            add_pair(rows, p, t, part[p][t], sums);
            if (bits == 6) add_pair(rows, p, t, other[p][t], second);
        }
    }
}

INLINE void large_codes(const int rows, const struct columns *in, int64_t group, const int first,
                        const struct pl_four *const *fours, sums_t sums[][TOGETHER]) {
    const int pairs = (rows + 1) / 2;
    pairs_t part[MOST_PAIRS][TOGETHER];
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int t = 0; t < TOGETHER; t++) part[p][t] = no_pairs();
    }
    UNROLL
    for (int j = 0; j < 8; j += 2) {
        bytes_t here[2][TOGETHER];
        UNROLL
        for (int t = 0; t < TOGETHER; t++) {
            const uint8_t *from = in->codes[first + t] + group * 512 + 64 * j;
            here[0][t] = signed_codes(load_bytes(from));
            here[1][t] = signed_codes(load_bytes(from + 64));
        }
        UNROLL
        for (int p = 0; p < pairs; p++) {
            const bytes_t two = eight_of_two(rows, p, fours, group, 4 * j);
            UNROLL
            for (int t = 0; t < TOGETHER; t++)
                part[p][t] = pair_dot(part[p][t], here[0][t], here[1][t], two);
        }
    }
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int t = 0; t < TOGETHER; t++) add_pair(rows, p, t, part[p][t], sums);
    }
}
