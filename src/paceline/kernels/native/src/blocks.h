/* The formats of weights, and the layout that products read.

   A matrix [outputs, inputs] is cut into panels of 16 outputs. A panel has first the codes of all
   groups of 32 inputs, then their scales, then what several groups share:

     codes   per group, for each four inputs a vector of 16 outputs x 4 inputs:
             4 bits:  four vectors; the low half of a byte is one of the group's first 16 inputs,
                      the high half one of the last 16
             5 bits:  that, and a vector whose bit j is the fifth bit of the inputs 4j..4j+3
             6 bits:  that, and two vectors with two bits each: of the first 16 inputs, the last 16
             8 bits:  eight vectors, signed
     scales  per group, for 16 outputs: float16 scale (Q4_0, Q5_0, Q8_0), float16 scale and offset
             (Q4_1, Q5_1), 8-bit scale and minimum (Q4_K, Q5_K), two 8-bit scales (Q6_K)
     supers  per 8 groups, for 16 outputs: float16 unit of scales and of minima (Q4_K, Q5_K), or of
             scales (Q6_K)

   For floats (F32, F16, BF16), a panel has, input by input, the numbers of 16 outputs. For BF16_DOT
   and BF16_TILES it has, for each two inputs, both numbers of each of 16 outputs, the second input
   first (the order in which the instruction adds them); rows are rounded to bfloat16 for these.
   BF16_TILES is padded to whole groups of 32 inputs, which are tiles of 1 KiB.

   The numbers are those of the GGUF file, without any rounding. */
#ifndef PL_BLOCKS_H
#define PL_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

enum { PL_PANEL = 16, PL_GROUP = 32, PL_SUPER = 8 };

enum pl_format {
    PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q5_1, PL_Q8_0, PL_Q4_K, PL_Q5_K, PL_Q6_K, PL_F32, PL_F16, PL_BF16,
    PL_BF16_DOT, PL_BF16_TILES, PL_FORMATS
};

/* How a format is laid out; sizes in bytes.

   zero: the code that stands for 0, if there is no offset. halves: whether the two halves of a group
   have their own scales. */
struct pl_layout {
    int bits, zero, halves;
    int codes, scales, supers;       /* of a panel: per group, per group, per 8 groups */
    int block_inputs, block_bytes;   /* of a block in a GGUF file */
};

#define PL_LAYOUTS \
    { \
        [PL_Q4_0] = {4, 8, 0, 256, 32, 0, 32, 18}, \
        [PL_Q4_1] = {4, 0, 0, 256, 64, 0, 32, 20}, \
        [PL_Q5_0] = {5, 16, 0, 320, 32, 0, 32, 22}, \
        [PL_Q5_1] = {5, 0, 0, 320, 64, 0, 32, 24}, \
        [PL_Q8_0] = {8, 0, 0, 512, 32, 0, 32, 34}, \
        [PL_Q4_K] = {4, 0, 0, 256, 32, 64, 256, 144}, \
        [PL_Q5_K] = {5, 0, 0, 320, 32, 64, 256, 176}, \
        [PL_Q6_K] = {6, 32, 1, 384, 32, 32, 256, 210}, \
        [PL_F32] = {32, 0, 0, 0, 0, 0, 1, 4}, \
        [PL_F16] = {16, 0, 0, 0, 0, 0, 1, 2}, \
        [PL_BF16] = {16, 0, 0, 0, 0, 0, 1, 2}, \
        [PL_BF16_DOT] = {16, 0, 0, 0, 0, 0, 1, 2}, \
        [PL_BF16_TILES] = {16, 0, 0, 0, 0, 0, 1, 2}, \
    }

static const struct pl_layout pl_layouts[PL_FORMATS] = PL_LAYOUTS;

struct pl_matrix {
    enum pl_format format;
    int64_t outputs, inputs;
    const uint8_t *panels;
};

static inline int64_t pl_groups(int64_t inputs) { return (inputs + PL_GROUP - 1) / PL_GROUP; }
static inline int64_t pl_panels(int64_t outputs) { return (outputs + PL_PANEL - 1) / PL_PANEL; }
static inline int64_t pl_supers(int64_t groups) { return (groups + PL_SUPER - 1) / PL_SUPER; }

static inline int pl_is_float(enum pl_format format) { return format >= PL_F32; }

/* Whether products read rows in bfloat16, with two numbers in the place of a float. */
static inline int pl_takes_pairs(enum pl_format format) { return format >= PL_BF16_DOT; }

/* Whether products read rows unchanged, in float32. */
static inline int pl_takes_floats(enum pl_format format) {
    return pl_is_float(format) && !pl_takes_pairs(format);
}

/* The place of an output's input in a panel of floats. */
static inline int64_t pl_place_of(enum pl_format format, int64_t input, int64_t output) {
    if (!pl_takes_pairs(format)) return input * PL_PANEL + output;
    return (input / 2 * PL_PANEL + output) * 2 + 1 - input % 2;
}

/* Bytes of one panel, a multiple of 64. */
static inline int64_t pl_panel_bytes(enum pl_format format, int64_t inputs) {
    const struct pl_layout *at = &pl_layouts[format];
    const int64_t groups = pl_groups(inputs);
    if (format == PL_BF16_DOT) inputs += inputs % 2;
    if (format == PL_BF16_TILES) inputs = groups * PL_GROUP;
    if (pl_is_float(format)) return (inputs * PL_PANEL * at->block_bytes + 63) / 64 * 64;
    const int64_t bytes =
        groups * (at->codes + at->scales) + pl_supers(groups) * at->supers;
    return (bytes + 63) / 64 * 64;
}

#endif
