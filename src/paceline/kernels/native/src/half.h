/* float16 (IEEE) and bfloat16 without the processor's help. */
#ifndef PL_HALF_H
#define PL_HALF_H

#include <stdint.h>

/* The number in two bytes, little endian. */
static inline float pl_half(const uint8_t *from) {
    const uint32_t bits = (uint32_t)from[0] | (uint32_t)from[1] << 8;
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 1023;
    union { uint32_t bits; float value; } made;
    if (exponent == 31) {
        made.bits = sign | 0x7f800000u | rest << 13;
    } else if (exponent) {
        made.bits = sign | (exponent + 112) << 23 | rest << 13;
    } else { /* subnormal, or 0: in units of 2 to the -24 */
        made.value = (float)rest * 0x1p-24f;
        made.bits |= sign;
    }
    return made.value;
}

/* A number as float16 in two bytes, little endian: ties to even; too large becomes infinite. */
static inline void pl_to_half(float value, uint8_t *to) {
    union { float value; uint32_t bits; } given = {value}, small = {value};
    const uint32_t sign = given.bits >> 16 & 0x8000u, size = given.bits & 0x7fffffffu;
    uint32_t half;
    if (size >= 0x47800000u) { /* 65536 and beyond, or NaN */
        half = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (size < 0x38800000u) { /* subnormal, or 0: adding 0.5 rounds to units of 2 to the -24 */
        small.bits = size;
        small.value += 0.5f;
        half = small.bits - 0x3f000000u;
    } else {
        half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    half |= sign;
    to[0] = (uint8_t)half, to[1] = (uint8_t)(half >> 8);
}

/* The bfloat16 number in two bytes: the upper half of a float. */
static inline float pl_brain(const uint8_t *from) {
    union { uint32_t bits; float value; } made;
    made.bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 24;
    return made.value;
}

/* A number as the bits of bfloat16: ties to even; too small for a normal number becomes 0. */
static inline uint32_t pl_to_brain(float value) {
    union { float value; uint32_t bits; } given = {value};
    const uint32_t size = given.bits & 0x7fffffffu, sign = given.bits >> 16 & 0x8000u;
    const uint32_t rounded = (size + 0x7fffu + (size >> 16 & 1u)) >> 16;
    const uint32_t found = size > 0x7f800000u ? 0x7fc0u : rounded;
    return sign | (found < 0x80u ? 0u : found);
}

#endif
