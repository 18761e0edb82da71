/* Sixteen outputs at once with AVX-512 and its VNNI; with PL_BF16_PRODUCTS, its bfloat16 products. */
#include "vec_x86.h"

#define LANES 16
#define COLUMNS 1
#define TOGETHER 1
#define FLOAT_COLUMNS 2
#define ROWS_OF_SCORES 6
#define CHUNKS_OF_SCORES 4
#define ROWS_OF_VALUES 6
#define MOST_ROWS 12
#define ROWS_OF_FLOATS 12

typedef __m512i bytes_t;
typedef __m512i part_t;
typedef __m512i sums_t;
typedef __m512 floats_t;

static inline bytes_t load_bytes(const uint8_t *from) { return _mm512_loadu_si512(from); }
static inline bytes_t low_half(bytes_t both) {
    return _mm512_and_si512(both, _mm512_set1_epi8(15));
}
static inline bytes_t high_half(bytes_t both) {
    return _mm512_and_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}
/* Bit `place` of every byte, as 16 or 0. */
static inline bytes_t bit_as_16(bytes_t bits, int place) {
    const bytes_t moved =
        place < 4 ? _mm512_slli_epi16(bits, 4 - place) : _mm512_srli_epi16(bits, place - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi8(16));
}
/* Bits 2 x place and 2 x place + 1 of every byte, as 0, 16, 32 or 48. */
static inline bytes_t pair_as_16(bytes_t bits, int place) {
    const bytes_t moved =
        place < 2 ? _mm512_slli_epi16(bits, 4 - 2 * place) : _mm512_srli_epi16(bits, 2 * place - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi8(48));
}
static inline bytes_t join(bytes_t one, bytes_t other) { return _mm512_or_si512(one, other); }

static inline sums_t no_sums(void) { return _mm512_setzero_si512(); }
static inline part_t no_part(void) { return _mm512_setzero_si512(); }

#define DOTS_BEFORE_WIDENING(bits) 1000
#define SIGNED_ZERO 128
#ifdef PL_EMULATE
static inline sums_t sums_at(const int32_t *at) { return _mm512_set1_epi32(*at); }
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    int32_t word;
    __builtin_memcpy(&word, four, 4);
    return _mm512_dpbusd_epi32(part, codes, _mm512_set1_epi32(word));
}
#else
/* These instructions repeat a number that they read from memory. Compilers load it with one and repeat
   it with another. */
static inline sums_t sums_at(const int32_t *at) {
    sums_t sums;
    __asm__("vpbroadcastd %1, %0" : "=v"(sums) : "m"(*at));
    return sums;
}
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(part) : "v"(codes), "m"(*(const int32_t *)four));
    return part;
}
#endif
static inline sums_t widen(sums_t sums, part_t part) { return _mm512_add_epi32(sums, part); }
static inline bytes_t signed_codes(bytes_t codes) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
}
static inline sums_t signed_dot(sums_t sums, bytes_t codes, const int8_t *four) {
    return dot(sums, codes, four);
}

static inline floats_t no_floats(void) { return _mm512_setzero_ps(); }
static inline floats_t load_floats(const float *from) { return _mm512_loadu_ps(from); }
static inline void store_floats(float *to, floats_t from) { _mm512_storeu_ps(to, from); }
static inline floats_t same_floats(float value) { return _mm512_set1_ps(value); }
static inline floats_t to_floats(sums_t sums) { return _mm512_cvtepi32_ps(sums); }
static inline floats_t halfs(const uint8_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline floats_t brains(const uint8_t *from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* One of the two bfloat16 numbers in the place of a float. */
static inline floats_t upper_brains(floats_t both) {
    const __m512i bits = _mm512_castps_si512(both);
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)));
}
static inline floats_t lower_brains(floats_t both) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(both), 16));
}
#ifdef PL_BF16_PRODUCTS
#define PAIRS_TIMES_PLUS
/* Adds the product of the upper numbers, then that of the lower ones, each rounded as by FMA. */
static inline floats_t pairs_times_plus(floats_t weights, floats_t numbers, floats_t sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)numbers);
}
#endif
static inline floats_t unsigned_bytes(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
static inline floats_t signed_bytes(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
static inline floats_t times(floats_t a, floats_t b) { return _mm512_mul_ps(a, b); }
static inline floats_t times_plus(floats_t a, floats_t b, floats_t c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline floats_t minus_times_plus(floats_t a, floats_t b, floats_t c) {
    return _mm512_fnmadd_ps(a, b, c);
}
static inline floats_t plus(floats_t a, floats_t b) { return _mm512_add_ps(a, b); }
static inline floats_t minus(floats_t a, floats_t b) { return _mm512_sub_ps(a, b); }
static inline floats_t over(floats_t a, floats_t b) { return _mm512_div_ps(a, b); }
static inline floats_t largest(floats_t a, floats_t b) { return _mm512_max_ps(a, b); }
/* Value where x is above the limit or NaN; 0 elsewhere. */
static inline floats_t where_above(floats_t x, floats_t limit, floats_t value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLE_UQ), value);
}
static inline __m256 first_half(floats_t of) { return _mm512_castps512_ps256(of); }
static inline __m256 second_half(floats_t of) { return _mm512_extractf32x8_ps(of, 1); }
static inline float first_lane(floats_t of) { return _mm256_cvtss_f32(first_half(of)); }
/* The sum of lanes: the second half is added to the first until one is left. */
static inline float sum_of_lanes(floats_t of) {
    return sum_of_eight(_mm256_add_ps(first_half(of), second_half(of)));
}
/* The largest lane; none may be NaN. */
static inline float top_of_lanes(floats_t of) {
    return top_of_eight(_mm256_max_ps(first_half(of), second_half(of)));
}
/* value x 2^power, for whole powers whose result is not subnormal. */
static inline floats_t times_two_to(floats_t value, floats_t power) {
    return _mm512_scalef_ps(value, power);
}
/* Four numbers of each of LANES rows, to four columns `stride` apart. */
static inline void turn_four(const float *const *rows, float *to, int64_t stride) {
    __m512 a[4];
    for (int i = 0; i < 4; i++) { /* rows i, i + 4, i + 8, i + 12 */
        a[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i]));
        a[i] = _mm512_mask_broadcast_f32x4(a[i], 0x00f0, _mm_loadu_ps(rows[i + 4]));
        a[i] = _mm512_mask_broadcast_f32x4(a[i], 0x0f00, _mm_loadu_ps(rows[i + 8]));
        a[i] = _mm512_mask_broadcast_f32x4(a[i], 0xf000, _mm_loadu_ps(rows[i + 12]));
    }
    const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
    const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
    const __m512d more_low = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
    const __m512d more_high = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
    store_floats(to, _mm512_castpd_ps(_mm512_unpacklo_pd(low, more_low)));
    store_floats(to + stride, _mm512_castpd_ps(_mm512_unpackhi_pd(low, more_low)));
    store_floats(to + 2 * stride, _mm512_castpd_ps(_mm512_unpacklo_pd(high, more_high)));
    store_floats(to + 3 * stride, _mm512_castpd_ps(_mm512_unpackhi_pd(high, more_high)));
}
