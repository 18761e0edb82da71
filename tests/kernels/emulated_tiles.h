/* AMX's tiles and their product of bfloat16 in plain C, as Intel's manual defines them: in a row of
   sums, of every two pairs the even and the odd products are added up apart, then both to the sum.
   A shape that the processor would refuse ends the program. For emulated_x86.h. */
#ifndef EMULATED_TILES_H
#define EMULATED_TILES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static __thread struct {
    int shaped, rows[8], bytes[8];
    uint8_t row[8][16][64];
} emulated_tiles;

static inline __attribute__((unused)) void emulated_refuse(int wrong) {
    if (wrong) abort();
}

/* The first 64 bytes: palette, first row, 14 that are 0, then bytes of rows and rows of 16 tiles. */
static inline __attribute__((unused)) void emulated_loadconfig(const void *from) {
    uint8_t given[64];
    memcpy(given, from, sizeof given);
    emulated_refuse(given[0] != 1 || given[1]);
    for (int i = 2; i < 16; i++) emulated_refuse(given[i]);
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
    for (int tile = 0; tile < 16; tile++) {
        const int bytes = given[16 + 2 * tile] | given[17 + 2 * tile] << 8, rows = given[48 + tile];
        emulated_refuse(bytes > 64 || rows > 16 || !bytes != !rows || (tile > 7 && rows));
        if (tile < 8) emulated_tiles.bytes[tile] = bytes, emulated_tiles.rows[tile] = rows;
    }
    emulated_tiles.shaped = 1;
}

static inline __attribute__((unused)) void emulated_use(int tile) {
    emulated_refuse(!emulated_tiles.shaped || !emulated_tiles.rows[tile]);
}

static inline __attribute__((unused)) void emulated_zero(int tile) {
    emulated_use(tile);
    memset(emulated_tiles.row[tile], 0, sizeof emulated_tiles.row[tile]);
}

static inline __attribute__((unused)) void emulated_loadd(int tile, const void *from, int64_t stride) {
    emulated_zero(tile);
    for (int row = 0; row < emulated_tiles.rows[tile]; row++)
        memcpy(emulated_tiles.row[tile][row], (const char *)from + row * stride,
               (size_t)emulated_tiles.bytes[tile]);
}

static inline __attribute__((unused)) void emulated_stored(int tile, void *to, int64_t stride) {
    emulated_use(tile);
    for (int row = 0; row < emulated_tiles.rows[tile]; row++)
        memcpy((char *)to + row * stride, emulated_tiles.row[tile][row],
               (size_t)emulated_tiles.bytes[tile]);
}

static inline __attribute__((unused)) float emulated_brain(int tile, int row, int place) {
    uint16_t brain;
    memcpy(&brain, emulated_tiles.row[tile][row] + 2 * place, 2);
    const uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline __attribute__((unused)) void emulated_dpbf16(int sums, int one, int other) {
    emulated_use(sums), emulated_use(one), emulated_use(other);
    emulated_refuse(emulated_tiles.rows[sums] != emulated_tiles.rows[one]);
    emulated_refuse(emulated_tiles.bytes[sums] != emulated_tiles.bytes[other]);
    emulated_refuse(emulated_tiles.bytes[one] != 4 * emulated_tiles.rows[other]);
    for (int row = 0; row < emulated_tiles.rows[sums]; row++)
        for (int column = 0; column < emulated_tiles.bytes[sums] / 4; column++) {
            float found, part[2] = {0, 0};
            for (int k = 0; k < emulated_tiles.rows[other]; k++)
                for (int odd = 0; odd < 2; odd++)
                    part[odd] = fmaf(emulated_brain(one, row, 2 * k + odd),
                                     emulated_brain(other, k, 2 * column + odd), part[odd]);
            memcpy(&found, emulated_tiles.row[sums][row] + 4 * column, 4);
            found += part[0] + part[1];
            memcpy(emulated_tiles.row[sums][row] + 4 * column, &found, 4);
        }
}

#define _tile_loadconfig emulated_loadconfig
#define _tile_release() memset(&emulated_tiles, 0, sizeof emulated_tiles)
#undef _tile_zero
#define _tile_zero emulated_zero
#undef _tile_loadd
#define _tile_loadd emulated_loadd
#undef _tile_stored
#define _tile_stored emulated_stored
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emulated_dpbf16

#endif
