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
    } else { /* subnormal, or 0: so many times 2 to the -24 */
        made.value = (float)rest * 0x1p-24f;
        made.bits |= sign;
    }
    return made.value;
}

/* The same for bfloat16: the upper half of a float. */
static inline float pl_brain(const uint8_t *from) {
    union { uint32_t bits; float value; } made;
    made.bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 24;
    return made.value;
}

#endif
