/* Rows in the form that products read: bfloat16 numbers, or 8-bit numbers, the largest 127, in groups
   of 32 with a scale each.

   Plain C that compilers vectorise. Every step is exact or rounded once, as in IEEE 754, so all tiers
   compute the same numbers. Infinity or NaN in a group makes its scale NaN, and so all results. */
#include <math.h>
#include <string.h>

#include "half.h"
#include "tier.h"

/* Adding and subtracting it rounds a number below 2 to the 22 to an integer, ties to even. */
#define ROUNDING 0x1.8p23f

/* A row as bfloat16 numbers, two in the place of a float, see pl_rows. */
static void round_pairs(const float *row, int64_t inputs, struct pl_rows *rows, int64_t place) {
    const int64_t count = rows->groups * PL_GROUP / 2, whole = inputs / 2;
    float *to = rows->pairs + place * count;
    union { uint32_t bits; float value; } both;
    for (int64_t pair = 0; pair < whole; pair++) {
        both.bits = pl_to_brain(row[2 * pair]) << 16 | pl_to_brain(row[2 * pair + 1]);
        to[pair] = both.value;
    }
    for (int64_t pair = whole; pair < count; pair++) {
        both.bits = 2 * pair < inputs ? pl_to_brain(row[2 * pair]) << 16 : 0;
        to[pair] = both.value;
    }
}

#ifndef ROUNDS_GROUPS
/* The largest magnitude in a group: magnitudes of floats are ordered like their bits, NaN last. */
static inline uint32_t largest_size(const float *group) {
    uint32_t bits[PL_GROUP], largest = 0;
    memcpy(bits, group, sizeof bits);
    for (int i = 0; i < PL_GROUP; i++) {
        const uint32_t size = bits[i] & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Codes of a group's numbers times `per`, all at most 127, and the sums of both halves. */
static inline void round_numbers(const float *group, float per, int8_t *codes, int32_t *sums) {
    int32_t whole[PL_GROUP];
    for (int i = 0; i < PL_GROUP; i++) whole[i] = (int32_t)((group[i] * per + ROUNDING) - ROUNDING);
    for (int i = 0; i < PL_GROUP; i++) codes[i] = (int8_t)whole[i];
    for (int half = 0; half < 2; half++) {
        sums[half] = 0;
        for (int i = 0; i < PL_GROUP / 2; i++) sums[half] += whole[half * PL_GROUP / 2 + i];
    }
}
#endif

/* Groups whose scales are computed together: division is slow. */
enum { GROUPS_AT_ONCE = 16 };

/* Scales of groups, from their largest magnitudes, and the factors for their numbers: both are 0 below
   2 to the -120, where 127 over the largest would be infinite. */
static void find_row_scales(const uint32_t *largest, float *scales, float *per) {
    for (int g = 0; g < GROUPS_AT_ONCE; g++) {
        union { uint32_t bits; float value; } known = {largest[g] < 0x03800000u ? 0 : largest[g]};
        union { uint32_t bits; float value; } below = {known.bits ? known.bits : 0x7f800000u};
        scales[g] = known.value / 127.0f, per[g] = 127.0f / below.value;
    }
}

/* One group of row `own` of a four. */
static void round_group_of_row(const struct pl_layout *at, const float *group, float scale, float per,
                               struct pl_four *four, int64_t own) {
    const int zero = at->bits == 8 ? SIGNED_ZERO : at->zero;
    int32_t halves[2] = {0, 0};
    if (scale < INFINITY) {
        round_numbers(group, per, four->codes[own], halves);
    } else { /* infinite or NaN */
        memset(four->codes[own], 0, PL_GROUP);
        scale = NAN;
    }
    const int32_t both = halves[0] + halves[1];
    four->scale[own] = scale, four->sum[own] = scale * (float)both;
    four->start[own] = -zero * (at->halves ? halves[0] : both);
    four->second[own] = -zero * halves[1];
}

static void quantise(enum pl_format format, const float *row, int64_t inputs, struct pl_rows *rows,
                     int64_t place) {
    if (pl_takes_pairs(format)) {
        round_pairs(row, inputs, rows, place);
        return;
    }
    struct pl_four *fours = pl_four_of(rows, place);
    const int64_t whole = inputs / PL_GROUP;
    float last[PL_GROUP] = {0}; /* missing numbers are 0 */
    if (whole < rows->groups)
        memcpy(last, row + whole * PL_GROUP, (size_t)(inputs - whole * PL_GROUP) * sizeof *row);
    for (int64_t first = 0; first < rows->groups; first += GROUPS_AT_ONCE) {
        const int64_t left = rows->groups - first;
        const int64_t count = left < GROUPS_AT_ONCE ? left : GROUPS_AT_ONCE;
        uint32_t largest[GROUPS_AT_ONCE] = {0};
        float scales[GROUPS_AT_ONCE], per[GROUPS_AT_ONCE];
        for (int64_t g = 0; g < count; g++)
            largest[g] = largest_size(first + g < whole ? row + (first + g) * PL_GROUP : last);
        find_row_scales(largest, scales, per);
        for (int64_t g = 0; g < count; g++)
            round_group_of_row(&pl_layouts[format],
                               first + g < whole ? row + (first + g) * PL_GROUP : last, scales[g],
                               per[g], fours + first + g, place % PL_FOUR);
    }
}
