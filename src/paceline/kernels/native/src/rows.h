/* Rows as products read them: numbers of bfloat16, or 8-bit numbers in groups of 32 with a scale
   each, of which the largest is 127.

   Plain C that compilers turn into vectors. Every step is exact or rounded once, as IEEE has it, so
   that all tiers make the same numbers. A group with a number that is none gets such a scale, and
   so does whatever is computed from it. */
#include <string.h>

#include "half.h"
#include "tier.h"

/* Adding and taking it away rounds what is below 2 to the 22 to a whole number, ties to even. */
#define ROUNDING 0x1.8p23f

/* Rows as numbers of bfloat16, two in the place of a float, see pl_rows. */
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

static void quantise(enum pl_format format, const float *row, int64_t inputs, struct pl_rows *rows,
                     int64_t place) {
    if (format == PL_BF16_DOT) {
        round_pairs(row, inputs, rows, place);
        return;
    }
    const struct pl_layout *at = &pl_layouts[format];
    const int zero = at->bits == 8 ? SIGNED_ZERO : at->zero;
    int8_t *codes = rows->codes + place * rows->groups * PL_GROUP;
    float *scales = rows->scale + place * rows->groups, *sums = rows->sum + place * rows->groups;
    int32_t *starts = rows->start + place * rows->groups * (1 + at->halves);
    for (int64_t group = 0; group < rows->groups; group++) {
        float of[PL_GROUP] = {0};
        const int64_t left = inputs - group * PL_GROUP;
        memcpy(of, row + group * PL_GROUP, (size_t)(left < PL_GROUP ? left : PL_GROUP) * 4);
        /* Sizes of floats are in the order of their bits, and those of no number come last. */
        uint32_t bits[PL_GROUP], largest = 0;
        memcpy(bits, of, sizeof bits);
        for (int i = 0; i < PL_GROUP; i++) {
            const uint32_t size = bits[i] & 0x7fffffffu;
            largest = size > largest ? size : largest;
        }
        float most;
        memcpy(&most, &largest, 4);
        /* The reciprocal of a very small number would be infinite. */
        const int some = largest >= 0x00800000u;
        const float scale = some ? most / 127.0f : 0.0f, per = some ? 127.0f / most : 0.0f;
        int32_t halves[2] = {0, 0};
        if (largest < 0x7f800000u) {
            int32_t whole[PL_GROUP];
            for (int i = 0; i < PL_GROUP; i++)
                whole[i] = (int32_t)((of[i] * per + ROUNDING) - ROUNDING);
            for (int i = 0; i < PL_GROUP / 2; i++) halves[0] += whole[i];
            for (int i = PL_GROUP / 2; i < PL_GROUP; i++) halves[1] += whole[i];
            for (int i = 0; i < PL_GROUP; i++) codes[group * PL_GROUP + i] = (int8_t)whole[i];
        } else {
            memset(codes + group * PL_GROUP, 0, PL_GROUP);
        }
        const int32_t both = halves[0] + halves[1];
        scales[group] = largest < 0x7f800000u ? scale : most - most; /* no number */
        sums[group] = scales[group] * (float)both;
        if (at->halves) {
            starts[2 * group] = -zero * halves[0], starts[2 * group + 1] = -zero * halves[1];
        } else {
            starts[group] = -zero * both;
        }
    }
}
