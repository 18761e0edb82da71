/* Converts blocks of GGUF files to panels, and both to numbers. */
#include <string.h>

#include "api.h"
#include "blocks.h"
#include "half.h"
#include "program.h"
#include "threads.h"

/* One group of 32 numbers: codes (Q8_0: signed), scales and offsets. */
struct group {
    uint8_t codes[PL_GROUP];
    const uint8_t *scale, *offset;  /* float16 in the file, or 8-bit in `own` */
    uint8_t own[2];                 /* scale and minimum, or the scales of both halves */
    const uint8_t *unit, *low_unit; /* float16 of 8 groups */
};

static void halves_of_bytes(const uint8_t *from, uint8_t *codes) {
    for (int i = 0; i < 16; i++) codes[i] = from[i] & 15, codes[i + 16] = from[i] >> 4;
}

static void fifth_bits(const uint8_t *from, uint8_t *codes) {
    uint32_t bits;
    memcpy(&bits, from, 4);
    for (int i = 0; i < PL_GROUP; i++) codes[i] |= (uint8_t)((bits >> i & 1) << 4);
}

/* Scale and minimum of group `j` of 8, which take 12 bytes in total. */
static void six_bit_scales(const uint8_t *b, int j, uint8_t *own) {
    if (j < 4) {
        own[0] = b[j] & 63, own[1] = b[j + 4] & 63;
    } else {
        own[0] = (uint8_t)((b[j + 4] & 15) | b[j - 4] >> 6 << 4);
        own[1] = (uint8_t)(b[j + 4] >> 4 | b[j] >> 6 << 4);
    }
}

static void read_k(enum pl_format format, const uint8_t *block, int j, struct group *to) {
    const uint8_t *nibbles = block + (format == PL_Q5_K ? 48 : 16) + j / 2 * 32;
    to->unit = block, to->low_unit = block + 2;
    six_bit_scales(block + 4, j, to->own);
    for (int i = 0; i < PL_GROUP; i++) to->codes[i] = j % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
    if (format == PL_Q5_K)
        for (int i = 0; i < PL_GROUP; i++)
            to->codes[i] |= (uint8_t)((block[16 + i] >> j & 1) << 4);
}

static void read_q6(const uint8_t *block, int j, struct group *to) {
    const int half = j / 4, quarter = j % 4;
    const uint8_t *low = block + half * 64 + quarter % 2 * 32, *high = block + 128 + half * 32;
    for (int i = 0; i < PL_GROUP; i++) {
        const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        to->codes[i] = (uint8_t)(nibble | (high[i] >> 2 * quarter & 3) << 4);
    }
    memcpy(to->own, block + 192 + 2 * j, 2);
    to->unit = block + 208;
}

/* Group `number` of a row of blocks. */
static void read_group(enum pl_format format, const uint8_t *row, int64_t number,
                       struct group *to) {
    const struct pl_layout *at = &pl_layouts[format];
    const int per_block = at->block_inputs / PL_GROUP, j = (int)(number % per_block);
    const uint8_t *block = row + number / per_block * at->block_bytes;
    to->scale = block, to->offset = block + 2;
    switch (format) {
    case PL_Q4_0: halves_of_bytes(block + 2, to->codes); break;
    case PL_Q4_1: halves_of_bytes(block + 4, to->codes); break;
    case PL_Q5_0:
        halves_of_bytes(block + 6, to->codes), fifth_bits(block + 2, to->codes);
        break;
    case PL_Q5_1:
        halves_of_bytes(block + 8, to->codes), fifth_bits(block + 4, to->codes);
        break;
    case PL_Q8_0: memcpy(to->codes, block + 2, PL_GROUP); break;
    case PL_Q4_K:
    case PL_Q5_K: read_k(format, block, j, to); break;
    default: read_q6(block, j, to);
    }
}

/* Where the parts of one output's group are in its panel. */
struct place {
    uint8_t *codes, *scales, *supers;
};

static struct place find_place(enum pl_format format, uint8_t *panel, int64_t groups,
                               int64_t number, int output) {
    const struct pl_layout *at = &pl_layouts[format];
    const int wide = at->block_inputs == PL_GROUP ? 2 : 1;
    return (struct place){
        panel + number * at->codes + 4 * output,
        panel + groups * at->codes + number * at->scales + wide * output,
        panel + groups * (at->codes + at->scales) + number / PL_SUPER * at->supers + 2 * output,
    };
}

static void write_group(enum pl_format format, const struct group *from, struct place to) {
    const struct pl_layout *at = &pl_layouts[format];
    const uint8_t *codes = from->codes;
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 4; k++) {
            const int i = 4 * j + k;
            if (at->bits == 8) {
                to.codes[64 * j + k] = codes[i], to.codes[64 * (j + 4) + k] = codes[i + 16];
                continue;
            }
            to.codes[64 * j + k] = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
            if (at->bits == 5)
                to.codes[256 + k] |= (uint8_t)(codes[i] >> 4 << j | codes[i + 16] >> 4 << (j + 4));
            if (at->bits == 6) {
                to.codes[256 + k] |= (uint8_t)(codes[i] >> 4 << 2 * j);
                to.codes[320 + k] |= (uint8_t)(codes[i + 16] >> 4 << 2 * j);
            }
        }
    if (at->supers) {
        to.scales[0] = from->own[0], to.scales[PL_PANEL] = from->own[1];
        memcpy(to.supers, from->unit, 2);
        if (at->supers > 32) memcpy(to.supers + 2 * PL_PANEL, from->low_unit, 2);
    } else {
        memcpy(to.scales, from->scale, 2);
        if (at->scales > 32) memcpy(to.scales + 2 * PL_PANEL, from->offset, 2);
    }
}

static void read_packed(enum pl_format format, struct place at, struct group *to) {
    const struct pl_layout *layout = &pl_layouts[format];
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 4; k++) {
            const int i = 4 * j + k;
            const uint8_t both = at.codes[64 * j + k];
            to->codes[i] = layout->bits == 8 ? both : both & 15;
            to->codes[i + 16] = layout->bits == 8 ? at.codes[64 * (j + 4) + k] : both >> 4;
            if (layout->bits == 5) {
                to->codes[i] |= (uint8_t)((at.codes[256 + k] >> j & 1) << 4);
                to->codes[i + 16] |= (uint8_t)((at.codes[256 + k] >> (j + 4) & 1) << 4);
            }
            if (layout->bits == 6) {
                to->codes[i] |= (uint8_t)((at.codes[256 + k] >> 2 * j & 3) << 4);
                to->codes[i + 16] |= (uint8_t)((at.codes[320 + k] >> 2 * j & 3) << 4);
            }
        }
    to->scale = at.scales, to->offset = at.scales + 2 * PL_PANEL;
    if (layout->supers) to->own[0] = at.scales[0], to->own[1] = at.scales[PL_PANEL];
    to->unit = at.supers, to->low_unit = at.supers + 2 * PL_PANEL;
}

/* The numbers of a group, with the same rounding as in ggml. */
static void write_values(enum pl_format format, const struct group *from, float *out) {
    const struct pl_layout *at = &pl_layouts[format];
    float scale[2], offset = 0;
    if (format == PL_Q6_K) {
        const float unit = pl_half(from->unit);
        scale[0] = unit * (float)(int8_t)from->own[0], scale[1] = unit * (float)(int8_t)from->own[1];
    } else if (at->supers) {
        scale[0] = scale[1] = pl_half(from->unit) * (float)from->own[0];
        offset = pl_half(from->low_unit) * (float)from->own[1];
    } else {
        scale[0] = scale[1] = pl_half(from->scale);
        if (at->scales > 32) offset = -pl_half(from->offset);
    }
    for (int i = 0; i < PL_GROUP; i++) {
        const int code = at->bits == 8 ? (int8_t)from->codes[i] : from->codes[i] - at->zero;
        out[i] = scale[i / 16] * (float)code - offset;
    }
}

PL_API int64_t pl_packed_bytes(int format, int64_t outputs, int64_t inputs) {
    const int64_t most = (int64_t)1 << 30; /* so products of sizes cannot overflow */
    if (format < 0 || format >= PL_FORMATS || outputs < 1 || inputs < 1) return 0;
    if (outputs > most || inputs > most || inputs % pl_layouts[format].block_inputs) return 0;
    return pl_panels(outputs) * pl_panel_bytes((enum pl_format)format, inputs);
}

struct packing {
    enum pl_format format;
    const uint8_t *blocks;
    const int64_t *rows;
    int64_t outputs, inputs;
    uint8_t *panels;
    float *out;
};

static const uint8_t *row_of(const struct packing *of, int64_t output) {
    const struct pl_layout *at = &pl_layouts[of->format];
    const int64_t row = of->rows ? of->rows[output] : output;
    return of->blocks + row * (of->inputs / at->block_inputs * at->block_bytes);
}

static void pack_floats(const struct packing *of, int64_t output, uint8_t *panel) {
    const size_t width = (size_t)pl_layouts[of->format].block_bytes;
    const uint8_t *row = row_of(of, output);
    for (int64_t k = 0; k < of->inputs; k++, row += width)
        memcpy(panel + (size_t)pl_place_of(of->format, k, output % PL_PANEL) * width, row, width);
}

static void pack_panels(void *given, int64_t first, int64_t end) {
    const struct packing *of = given;
    const int64_t groups = pl_groups(of->inputs), bytes = pl_panel_bytes(of->format, of->inputs);
    for (int64_t panel = first; panel < end; panel++) {
        uint8_t *to = of->panels + panel * bytes;
        memset(to, 0, (size_t)bytes); /* missing outputs are 0 */
        const int64_t begin = panel * PL_PANEL;
        for (int64_t output = begin; output < begin + PL_PANEL && output < of->outputs; output++) {
            if (pl_is_float(of->format)) {
                pack_floats(of, output, to);
                continue;
            }
            for (int64_t number = 0; number < groups; number++) {
                struct group group;
                read_group(of->format, row_of(of, output), number, &group);
                write_group(of->format, &group,
                            find_place(of->format, to, groups, number, (int)(output - begin)));
            }
        }
    }
}

PL_API int pl_pack(int format, const uint8_t *blocks, const int64_t *rows, int64_t outputs,
                   int64_t inputs, uint8_t *panels, int threads) {
    if (!pl_packed_bytes(format, outputs, inputs)) return PL_BAD_ARGUMENT;
    struct packing of = {(enum pl_format)format, blocks, rows, outputs, inputs, panels, NULL};
    pl_in_pieces(pack_panels, &of, pl_panels(outputs), 8, threads);
    return PL_OK;
}

/* Number `i` of floats in this format. */
static float float_at(enum pl_format format, const uint8_t *from, int64_t i) {
    float value;
    if (format == PL_F16) return pl_half(from + 2 * i);
    if (format == PL_BF16 || pl_takes_pairs(format)) return pl_brain(from + 2 * i);
    memcpy(&value, from + 4 * i, 4);
    return value;
}

void pl_row_values(enum pl_format format, const uint8_t *panels, int64_t inputs, int64_t id,
                   float *out) {
    const int64_t groups = pl_groups(inputs), bytes = pl_panel_bytes(format, inputs);
    uint8_t *panel = (uint8_t *)panels + id / PL_PANEL * bytes;
    if (pl_is_float(format)) {
        for (int64_t k = 0; k < inputs; k++)
            out[k] = float_at(format, panel, pl_place_of(format, k, id % PL_PANEL));
        return;
    }
    for (int64_t number = 0; number < groups; number++) {
        struct group group;
        read_packed(format, find_place(format, panel, groups, number, (int)(id % PL_PANEL)), &group);
        write_values(format, &group, out + number * PL_GROUP);
    }
}

static void packed_values(void *given, int64_t first, int64_t end) {
    const struct packing *of = given;
    for (int64_t place = first; place < end; place++)
        pl_row_values(of->format, of->panels, of->inputs, of->rows[place],
                      of->out + place * of->inputs);
}

PL_API int pl_values(int format, const uint8_t *panels, int64_t outputs, int64_t inputs,
                     const int64_t *ids, int64_t count, float *out, int threads) {
    if (!pl_packed_bytes(format, outputs, inputs) || count < 0) return PL_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= outputs) return PL_BAD_ARGUMENT;
    struct packing of = {(enum pl_format)format, NULL, ids, outputs, inputs, (uint8_t *)panels, out};
    pl_in_pieces(packed_values, &of, count, 16, threads);
    return PL_OK;
}

static void block_values(void *given, int64_t first, int64_t end) {
    const struct packing *of = given;
    for (int64_t output = first; output < end; output++) {
        const uint8_t *row = row_of(of, output);
        for (int64_t k = 0; pl_is_float(of->format) && k < of->inputs; k++)
            of->out[output * of->inputs + k] = float_at(of->format, row, k);
        if (pl_is_float(of->format)) continue;
        for (int64_t number = 0; number < pl_groups(of->inputs); number++) {
            struct group group;
            read_group(of->format, row, number, &group);
            write_values(of->format, &group, of->out + output * of->inputs + number * PL_GROUP);
        }
    }
}

PL_API int pl_dequantise(int format, const uint8_t *blocks, int64_t outputs, int64_t inputs,
                         float *out, int threads) {
    if (!pl_packed_bytes(format, outputs, inputs)) return PL_BAD_ARGUMENT;
    struct packing of = {(enum pl_format)format, blocks, NULL, outputs, inputs, NULL, out};
    pl_in_pieces(block_values, &of, outputs, 64, threads);
    return PL_OK;
}
