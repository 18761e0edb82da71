/* The instructions of AVX-512, its VNNI and BF16, AVX-VNNI and AMX that paceline uses, in plain C, so that a
   processor without them runs those tiers. Compiled in by -DPL_EMULATE -include this file. */
#ifndef EMULATED_X86_H
#define EMULATED_X86_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "emulated_tiles.h"

#define EMULATED static inline __attribute__((unused))

typedef union {
    __m512i bits;
    __m512 floats;
    __m512d doubles;
    int8_t b[64];
    uint8_t ub[64];
    uint16_t w[32];
    int32_t d[16];
    float f[16];
    double p[8];
} wide;

#define EACH_OF(count, to, expression) \
    do { \
        for (int i = 0; i < (count); i++) (to)[i] = (expression); \
    } while (0)

EMULATED __m512i emulated_load512(const void *from) {
    wide made;
    memcpy(&made, from, 64);
    return made.bits;
}
EMULATED __m512 emulated_loadps(const void *from) {
    wide made;
    memcpy(&made, from, 64);
    return made.floats;
}
EMULATED void emulated_storeps(float *to, __m512 from) { memcpy(to, &from, 64); }
EMULATED __m512i emulated_set32(int32_t value) {
    wide made;
    EACH_OF(16, made.d, value);
    return made.bits;
}
EMULATED __m512i emulated_set8(char value) {
    wide made;
    EACH_OF(64, made.b, (int8_t)value);
    return made.bits;
}
EMULATED __m512 emulated_setps(float value) {
    wide made;
    EACH_OF(16, made.f, value);
    return made.floats;
}
#define EMULATED_BITS(name, operator) \
    EMULATED __m512i name(__m512i one, __m512i other) { \
        wide a = {.bits = one}, b = {.bits = other}, made; \
        EACH_OF(64, made.ub, a.ub[i] operator b.ub[i]); \
        return made.bits; \
    }
EMULATED_BITS(emulated_and, &)
EMULATED_BITS(emulated_or, |)
EMULATED_BITS(emulated_xor, ^)
EMULATED __m512i emulated_srli16(__m512i from, int places) {
    wide a = {.bits = from}, made;
    EACH_OF(32, made.w, (uint16_t)(a.w[i] >> places));
    return made.bits;
}
EMULATED __m512i emulated_slli16(__m512i from, int places) {
    wide a = {.bits = from}, made;
    EACH_OF(32, made.w, (uint16_t)(a.w[i] << places));
    return made.bits;
}
EMULATED __m512i emulated_add32(__m512i one, __m512i other) {
    wide a = {.bits = one}, b = {.bits = other}, made;
    EACH_OF(16, made.d, (int32_t)((uint32_t)a.d[i] + (uint32_t)b.d[i]));
    return made.bits;
}
EMULATED __m512i emulated_dpbusd(__m512i sums, __m512i unsigned_bytes, __m512i signed_bytes) {
    wide made = {.bits = sums}, a = {.bits = unsigned_bytes}, b = {.bits = signed_bytes};
    for (int i = 0; i < 64; i++) made.d[i / 4] += a.ub[i] * b.b[i];
    return made.bits;
}
EMULATED __m256i emulated_dpbusd256(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
    int32_t made[8];
    uint8_t a[32];
    int8_t b[32];
    memcpy(made, &sums, 32), memcpy(a, &unsigned_bytes, 32), memcpy(b, &signed_bytes, 32);
    for (int i = 0; i < 32; i++) made[i / 4] += a[i] * b[i];
    memcpy(&sums, made, 32);
    return sums;
}
EMULATED __m512 emulated_cvt(__m512i from) {
    wide a = {.bits = from}, made;
    EACH_OF(16, made.f, (float)a.d[i]);
    return made.floats;
}
EMULATED __m512 emulated_halfs(__m256i from) {
    wide made;
    uint16_t halfs[16];
    memcpy(halfs, &from, 32);
    EACH_OF(16, made.f, _cvtsh_ss(halfs[i]));
    return made.floats;
}
EMULATED __m512i emulated_widen_unsigned(__m128i from) {
    wide made;
    uint8_t bytes[16];
    memcpy(bytes, &from, 16);
    EACH_OF(16, made.d, bytes[i]);
    return made.bits;
}
EMULATED __m512i emulated_widen_signed(__m128i from) {
    wide made;
    int8_t bytes[16];
    memcpy(bytes, &from, 16);
    EACH_OF(16, made.d, bytes[i]);
    return made.bits;
}
EMULATED __m512i emulated_widen_words(__m256i from) {
    wide made;
    uint16_t words[16];
    memcpy(words, &from, 32);
    EACH_OF(16, made.d, words[i]);
    return made.bits;
}
EMULATED __m512 emulated_cast(__m512i from) {
    wide a = {.bits = from};
    return a.floats;
}
EMULATED __m512i emulated_bits_of(__m512 from) {
    const wide a = {.floats = from};
    return a.bits;
}
EMULATED __m512i emulated_slli32(__m512i from, int places) {
    wide a = {.bits = from}, made;
    EACH_OF(16, made.d, (int32_t)((uint32_t)a.d[i] << places));
    return made.bits;
}
EMULATED __m512 emulated_mul(__m512 one, __m512 other) {
    wide a = {.floats = one}, b = {.floats = other}, made;
    EACH_OF(16, made.f, a.f[i] * b.f[i]);
    return made.floats;
}
EMULATED __m512 emulated_fma(__m512 one, __m512 other, __m512 third) {
    wide a = {.floats = one}, b = {.floats = other}, c = {.floats = third}, made;
    EACH_OF(16, made.f, fmaf(a.f[i], b.f[i], c.f[i]));
    return made.floats;
}
EMULATED __m512 emulated_fnma(__m512 one, __m512 other, __m512 third) {
    wide a = {.floats = one}, b = {.floats = other}, c = {.floats = third}, made;
    EACH_OF(16, made.f, fmaf(-a.f[i], b.f[i], c.f[i]));
    return made.floats;
}

EMULATED __m512 emulated_dpbf16ps(__m512 sums, __m512i one, __m512i other) {
    wide a = {.bits = one}, b = {.bits = other}, c = {.floats = sums}, upper[2], lower[2];
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 16; i++) {
            const uint32_t both = (uint32_t)(side ? b : a).d[i];
            upper[side].d[i] = (int32_t)(both & 0xffff0000u);
            lower[side].d[i] = (int32_t)(both << 16);
        }
    EACH_OF(16, c.f, fmaf(upper[0].f[i], upper[1].f[i], c.f[i]));
    EACH_OF(16, c.f, fmaf(lower[0].f[i], lower[1].f[i], c.f[i]));
    return c.floats;
}

#define EMULATED_FLOATS(name, expression) \
    EMULATED __m512 name(__m512 one, __m512 other) { \
        wide a = {.floats = one}, b = {.floats = other}, made; \
        EACH_OF(16, made.f, expression); \
        return made.floats; \
    }
EMULATED_FLOATS(emulated_add, a.f[i] + b.f[i])
EMULATED_FLOATS(emulated_div, a.f[i] / b.f[i])
EMULATED_FLOATS(emulated_sub, a.f[i] - b.f[i])
EMULATED_FLOATS(emulated_max, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
EMULATED_FLOATS(emulated_scalef, ldexpf(a.f[i], (int)b.f[i]))
/* Only for "not less or equal", which is what is asked for. */
EMULATED __mmask16 emulated_above(__m512 one, __m512 other) {
    wide a = {.floats = one}, b = {.floats = other};
    unsigned made = 0;
    for (int i = 0; i < 16; i++) made |= (unsigned)!(a.f[i] <= b.f[i]) << i;
    return (__mmask16)made;
}
EMULATED __m512 emulated_where(__mmask16 mask, __m512 from) {
    wide a = {.floats = from}, made;
    EACH_OF(16, made.f, mask >> i & 1 ? a.f[i] : 0.0f);
    return made.floats;
}

EMULATED __m512 emulated_wider(__m128 from) {
    wide made = {.floats = emulated_setps(0)};
    memcpy(made.f, &from, 16);
    return made.floats;
}
/* Only for whole quarters, which is what is asked for. */
EMULATED __m512 emulated_quarters(__m512 old, __mmask16 mask, __m128 from) {
    wide made = {.floats = old};
    for (int quarter = 0; quarter < 4; quarter++)
        if (mask >> 4 * quarter & 1) memcpy(made.f + 4 * quarter, &from, 16);
    return made.floats;
}
EMULATED __m256 emulated_half(__m512 from, int half) {
    const wide a = {.floats = from};
    return _mm256_loadu_ps(a.f + 8 * half);
}
EMULATED __m512d emulated_as_doubles(__m512 from) {
    const wide made = {.floats = from};
    return made.doubles;
}
EMULATED __m512 emulated_as_floats(__m512d from) {
    const wide made = {.doubles = from};
    return made.floats;
}
EMULATED __m512 emulated_unpack_floats(__m512 one, __m512 other, int at) {
    const wide a = {.floats = one}, b = {.floats = other};
    wide made;
    EACH_OF(16, made.f, (i & 1 ? b : a).f[i / 4 * 4 + at + i % 4 / 2]);
    return made.floats;
}
EMULATED __m512d emulated_unpack_doubles(__m512d one, __m512d other, int at) {
    const wide a = {.doubles = one}, b = {.doubles = other};
    wide made;
    EACH_OF(8, made.p, (i & 1 ? b : a).p[i / 2 * 2 + at]);
    return made.doubles;
}

#define _mm512_castps128_ps512 emulated_wider
#define _mm512_castps512_ps256(from) emulated_half(from, 0)
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emulated_half
#define _mm512_mask_broadcast_f32x4 emulated_quarters
#define _mm512_castps_pd emulated_as_doubles
#define _mm512_castpd_ps emulated_as_floats
#define _mm512_unpacklo_ps(one, other) emulated_unpack_floats(one, other, 0)
#define _mm512_unpackhi_ps(one, other) emulated_unpack_floats(one, other, 2)
#define _mm512_unpacklo_pd(one, other) emulated_unpack_doubles(one, other, 0)
#define _mm512_unpackhi_pd(one, other) emulated_unpack_doubles(one, other, 1)
#define _mm512_add_ps emulated_add
#define _mm512_div_ps emulated_div
#define _mm512_cvtepu16_epi32 emulated_widen_words
#define _mm512_slli_epi32 emulated_slli32
#define _mm512_castsi512_ps emulated_cast
#define _mm512_castps_si512 emulated_bits_of
#define _mm512_sub_ps emulated_sub
#define _mm512_max_ps emulated_max
#define _mm512_scalef_ps emulated_scalef
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(one, other, kind) emulated_above(one, other)
#define _mm512_maskz_mov_ps emulated_where
#define _mm512_loadu_si512 emulated_load512
#define _mm512_loadu_ps emulated_loadps
#define _mm512_storeu_ps emulated_storeps
#define _mm512_set1_epi32 emulated_set32
#define _mm512_set1_epi8 emulated_set8
#define _mm512_set1_ps emulated_setps
#define _mm512_setzero_si512() emulated_set32(0)
#define _mm512_setzero_ps() emulated_setps(0)
#define _mm512_and_si512 emulated_and
#define _mm512_or_si512 emulated_or
#define _mm512_xor_si512 emulated_xor
#define _mm512_srli_epi16 emulated_srli16
#define _mm512_slli_epi16 emulated_slli16
#define _mm512_add_epi32 emulated_add32
#define _mm512_dpbusd_epi32 emulated_dpbusd
#define __m512bh __m512i
#define _mm512_dpbf16_ps emulated_dpbf16ps
#define _mm256_dpbusd_epi32 emulated_dpbusd256
#define _mm512_cvtepi32_ps emulated_cvt
#define _mm512_cvtph_ps emulated_halfs
#define _mm512_cvtepu8_epi32 emulated_widen_unsigned
#define _mm512_cvtepi8_epi32 emulated_widen_signed
#define _mm512_mul_ps emulated_mul
#define _mm512_fmadd_ps emulated_fma
#define _mm512_fnmadd_ps emulated_fnma

#endif
