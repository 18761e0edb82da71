/* Four outputs at once with ARMv8.2's dot product, or with PL_I8MM two outputs by two rows. Its authors
   have run it only in an emulator, so it was never timed. */
#include <arm_neon.h>
#include <stdint.h>

#define LANES 4
#define COLUMNS 4
#define TOGETHER 2
#define FLOAT_COLUMNS 4
#define ROWS_OF_SCORES 3
#define CHUNKS_OF_SCORES 2
#define ROWS_OF_VALUES 3
#define MOST_ROWS 4
#define ROWS_OF_FLOATS 6

typedef int8x16_t bytes_t;
typedef int32x4_t part_t;
typedef int32x4_t sums_t;
typedef float32x4_t floats_t;

static inline bytes_t load_bytes(const uint8_t *from) {
    return vreinterpretq_s8_u8(vld1q_u8(from));
}
static inline bytes_t broadcast(const int8_t *four) {
    int32_t word;
    __builtin_memcpy(&word, four, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
static inline bytes_t low_half(bytes_t both) { return vandq_s8(both, vdupq_n_s8(15)); }
static inline bytes_t high_half(bytes_t both) {
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(both), 4));
}
/* Bit `place` of every byte, as 16 or 0. */
static inline bytes_t bit_as_16(bytes_t bits, int place) {
    const uint8x16_t moved = vshlq_u8(vreinterpretq_u8_s8(bits), vdupq_n_s8((int8_t)(4 - place)));
    return vreinterpretq_s8_u8(vandq_u8(moved, vdupq_n_u8(16)));
}
/* Bits 2 x place and 2 x place + 1 of every byte, as 0, 16, 32 or 48. */
static inline bytes_t pair_as_16(bytes_t bits, int place) {
    const uint8x16_t moved =
        vshlq_u8(vreinterpretq_u8_s8(bits), vdupq_n_s8((int8_t)(4 - 2 * place)));
    return vreinterpretq_s8_u8(vandq_u8(moved, vdupq_n_u8(48)));
}
static inline bytes_t join(bytes_t one, bytes_t other) { return vorrq_s8(one, other); }

static inline sums_t sums_at(const int32_t *at) { return vld1q_dup_s32(at); }
static inline sums_t no_sums(void) { return vdupq_n_s32(0); }
static inline part_t no_part(void) { return vdupq_n_s32(0); }

#define DOTS_BEFORE_WIDENING(bits) 1000
#define SIGNED_ZERO 0
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    return vdotq_s32(part, codes, broadcast(four));
}
static inline sums_t widen(sums_t sums, part_t part) { return vaddq_s32(sums, part); }
static inline bytes_t signed_codes(bytes_t codes) { return codes; }
static inline sums_t signed_dot(sums_t sums, bytes_t codes, const int8_t *four) {
    return vdotq_s32(sums, codes, broadcast(four));
}

#ifdef PL_I8MM
#define BY_PAIRS
/* Sums of two rows and two outputs each: outputs 0 and 1, outputs 2 and 3. */
typedef struct { int32x4_t low, high; } pairs_t;
static inline pairs_t no_pairs(void) { return (pairs_t){vdupq_n_s32(0), vdupq_n_s32(0)}; }
static inline bytes_t two_rows(const int8_t *one, const int8_t *other) {
    return vcombine_s8(vld1_s8(one), vld1_s8(other));
}
/* Codes of four outputs for four numbers, and for the next four. */
static inline pairs_t pair_dot(pairs_t sums, bytes_t four, bytes_t next, bytes_t rows) {
    const int32x4_t one = vreinterpretq_s32_s8(four), two = vreinterpretq_s32_s8(next);
    sums.low = vmmlaq_s32(sums.low, vreinterpretq_s8_s32(vzip1q_s32(one, two)), rows);
    sums.high = vmmlaq_s32(sums.high, vreinterpretq_s8_s32(vzip2q_s32(one, two)), rows);
    return sums;
}
static inline part_t of_first(pairs_t sums) { return vuzp1q_s32(sums.low, sums.high); }
static inline part_t of_other(pairs_t sums) { return vuzp2q_s32(sums.low, sums.high); }
#endif

static inline floats_t no_floats(void) { return vdupq_n_f32(0); }
static inline floats_t load_floats(const float *from) { return vld1q_f32(from); }
static inline void store_floats(float *to, floats_t from) { vst1q_f32(to, from); }
static inline floats_t same_floats(float value) { return vdupq_n_f32(value); }
static inline floats_t to_floats(sums_t sums) { return vcvtq_f32_s32(sums); }
static inline floats_t halfs(const uint8_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}
static inline floats_t brains(const uint8_t *from) {
    const uint16x4_t narrow = vreinterpret_u16_u8(vld1_u8(from));
    return vreinterpretq_f32_u32(vshll_n_u16(narrow, 16));
}
/* One of the two bfloat16 numbers in the place of a float. */
static inline floats_t upper_brains(floats_t both) {
    const uint32x4_t bits = vreinterpretq_u32_f32(both);
    return vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000u)));
}
static inline floats_t lower_brains(floats_t both) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(both), 16));
}
static inline floats_t unsigned_bytes(const uint8_t *from) {
    uint32_t word;
    __builtin_memcpy(&word, from, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
static inline floats_t signed_bytes(const uint8_t *from) {
    uint32_t word;
    __builtin_memcpy(&word, from, 4);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
static inline floats_t times(floats_t a, floats_t b) { return vmulq_f32(a, b); }
static inline floats_t times_plus(floats_t a, floats_t b, floats_t c) { return vfmaq_f32(c, a, b); }
static inline floats_t minus_times_plus(floats_t a, floats_t b, floats_t c) {
    return vfmsq_f32(c, a, b);
}
static inline floats_t plus(floats_t a, floats_t b) { return vaddq_f32(a, b); }
static inline floats_t minus(floats_t a, floats_t b) { return vsubq_f32(a, b); }
static inline floats_t over(floats_t a, floats_t b) { return vdivq_f32(a, b); }
static inline floats_t largest(floats_t a, floats_t b) { return vmaxq_f32(a, b); }
/* Value where x is above the limit or NaN; 0 elsewhere. */
static inline floats_t where_above(floats_t x, floats_t limit, floats_t value) {
    const uint32x4_t below = vcleq_f32(x, limit);
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below));
}
static inline float first_lane(floats_t of) { return vgetq_lane_f32(of, 0); }
/* The sum of lanes: the second half is added to the first until one is left. */
static inline float sum_of_lanes(floats_t of) {
    const float32x2_t two = vadd_f32(vget_low_f32(of), vget_high_f32(of));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
/* The largest lane; none may be NaN. */
static inline float top_of_lanes(floats_t of) { return vmaxvq_f32(of); }
/* value x 2^power, for whole powers whose result is not subnormal. */
static inline floats_t times_two_to(floats_t value, floats_t power) {
    const int32x4_t places = vshlq_n_s32(vcvtq_s32_f32(power), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(value), places));
}
/* Four numbers of each of LANES rows, to four columns `stride` apart. */
static inline void turn_four(const float *const *rows, float *to, int64_t stride) {
    const float32x4x2_t low = vtrnq_f32(vld1q_f32(rows[0]), vld1q_f32(rows[1]));
    const float32x4x2_t high = vtrnq_f32(vld1q_f32(rows[2]), vld1q_f32(rows[3]));
    for (int i = 0; i < 2; i++) {
        vst1q_f32(to + i * stride, vcombine_f32(vget_low_f32(low.val[i]), vget_low_f32(high.val[i])));
        vst1q_f32(to + (i + 2) * stride,
                  vcombine_f32(vget_high_f32(low.val[i]), vget_high_f32(high.val[i])));
    }
}
