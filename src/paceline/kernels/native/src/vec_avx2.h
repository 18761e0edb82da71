/* Eight outputs at once with AVX2 and FMA; dot products of bytes by VNNI if PL_VNNI is set.

   Without VNNI, two products are added in 16 bits, so only a few sums may accumulate before they are
   widened: 255 x 127 would not even fit once, but codes of 4, 5 and 6 bits are small. Signed bytes
   are multiplied as |w| and a with the sign of w. */
#include "vec_x86.h"

#define LANES 8
#define COLUMNS 2
#define TOGETHER 2
#define FLOAT_COLUMNS 2
#define ROWS_OF_SCORES 3
#define STEPS_OF_SCORES 16
#define CHUNKS_OF_SCORES 2
#define ROWS_OF_VALUES 3
#define MOST_ROWS 4
#define ROWS_OF_FLOATS 6

typedef __m256i bytes_t;
typedef __m256i part_t;
typedef __m256i sums_t;
typedef __m256 floats_t;

static inline bytes_t load_bytes(const uint8_t *from) {
    return _mm256_loadu_si256((const __m256i *)from);
}
static inline bytes_t broadcast(const int8_t *four) {
    int32_t word;
    __builtin_memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}
static inline bytes_t low_half(bytes_t both) {
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}
static inline bytes_t high_half(bytes_t both) {
    return _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
}
/* Bit `place` of every byte, as 16 or 0. */
static inline bytes_t bit_as_16(bytes_t bits, int place) {
    const bytes_t moved =
        place < 4 ? _mm256_slli_epi16(bits, 4 - place) : _mm256_srli_epi16(bits, place - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}
/* Bits 2 x place and 2 x place + 1 of every byte, as 0, 16, 32 or 48. */
static inline bytes_t pair_as_16(bytes_t bits, int place) {
    const bytes_t moved =
        place < 2 ? _mm256_slli_epi16(bits, 4 - 2 * place) : _mm256_srli_epi16(bits, 2 * place - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(48));
}
static inline bytes_t join(bytes_t one, bytes_t other) { return _mm256_or_si256(one, other); }

static inline sums_t sums_at(const int32_t *at) { return _mm256_set1_epi32(*at); }
static inline sums_t no_sums(void) { return _mm256_setzero_si256(); }
static inline part_t no_part(void) { return _mm256_setzero_si256(); }

#ifdef PL_VNNI
#define DOTS_BEFORE_WIDENING(bits) 1000
#define SIGNED_ZERO 128
#ifdef PL_EMULATE
#define PL_DPBUSD _mm256_dpbusd_epi32
#else
#define PL_DPBUSD _mm256_dpbusd_avx_epi32
#endif
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    return PL_DPBUSD(part, codes, broadcast(four));
}
static inline sums_t widen(sums_t sums, part_t part) { return _mm256_add_epi32(sums, part); }
static inline bytes_t signed_codes(bytes_t codes) {
    return _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
}
static inline sums_t signed_dot(sums_t sums, bytes_t codes, const int8_t *four) {
    return PL_DPBUSD(sums, codes, broadcast(four));
}
#else
/* Rows from which weights are made ready first, see ready.h; measured on Zen 3. */
#define READY_FROM(bits) ((bits) == 4 ? 24 : 12)
#define DOTS_BEFORE_WIDENING(bits) ((bits) == 4 ? 8 : (bits) == 5 ? 4 : 2)
#define SIGNED_ZERO 0
/* Sums in a register, where it stays: compilers add integers in another order, after all products,
   which do not fit into registers. */
#define IN_REGISTER(sums) __asm__("" : "+x"(sums))
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    part = _mm256_add_epi16(part, _mm256_maddubs_epi16(codes, broadcast(four)));
    IN_REGISTER(part);
    return part;
}
static inline sums_t widen(sums_t sums, part_t part) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
}
static inline bytes_t signed_codes(bytes_t codes) { return codes; }
static inline sums_t signed_dot(sums_t sums, bytes_t codes, const int8_t *four) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(broadcast(four), codes));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    IN_REGISTER(sums);
    return sums;
}
#endif

static inline floats_t no_floats(void) { return _mm256_setzero_ps(); }
static inline floats_t load_floats(const float *from) { return _mm256_loadu_ps(from); }
static inline void store_floats(float *to, floats_t from) { _mm256_storeu_ps(to, from); }
static inline floats_t same_floats(float value) { return _mm256_set1_ps(value); }
static inline floats_t to_floats(sums_t sums) { return _mm256_cvtepi32_ps(sums); }
static inline floats_t halfs(const uint8_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline floats_t brains(const uint8_t *from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
/* One of the two bfloat16 numbers in the place of a float. */
static inline floats_t upper_brains(floats_t both) {
    const __m256i bits = _mm256_castps_si256(both);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000)));
}
static inline floats_t lower_brains(floats_t both) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(both), 16));
}
static inline floats_t unsigned_bytes(const uint8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
static inline floats_t signed_bytes(const uint8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
static inline floats_t times(floats_t a, floats_t b) { return _mm256_mul_ps(a, b); }
static inline floats_t times_plus(floats_t a, floats_t b, floats_t c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline floats_t minus_times_plus(floats_t a, floats_t b, floats_t c) {
    return _mm256_fnmadd_ps(a, b, c);
}
static inline floats_t plus(floats_t a, floats_t b) { return _mm256_add_ps(a, b); }
static inline floats_t minus(floats_t a, floats_t b) { return _mm256_sub_ps(a, b); }
static inline floats_t over(floats_t a, floats_t b) { return _mm256_div_ps(a, b); }
static inline floats_t largest(floats_t a, floats_t b) { return _mm256_max_ps(a, b); }
/* Value where x is above the limit or NaN; 0 elsewhere. */
static inline floats_t where_above(floats_t x, floats_t limit, floats_t value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLE_UQ), value);
}
static inline float first_lane(floats_t of) { return _mm256_cvtss_f32(of); }
/* The sum of lanes: the second half is added to the first until one is left. */
static inline float sum_of_lanes(floats_t of) { return sum_of_eight(of); }
/* The largest lane; none may be NaN. */
static inline float top_of_lanes(floats_t of) { return top_of_eight(of); }
/* value x 2^power, for whole powers whose result is not subnormal. */
static inline floats_t times_two_to(floats_t value, floats_t power) {
    const __m256i places = _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), places));
}
/* Four numbers of each of LANES rows, to four columns `stride` apart. */
static inline void turn_four(const float *const *rows, float *to, int64_t stride) {
    __m256 a[4];
    for (int i = 0; i < 4; i++) /* rows i, i + 4 */
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i])),
                                    _mm_loadu_ps(rows[i + 4]), 1);
    const __m256d low = _mm256_castps_pd(_mm256_unpacklo_ps(a[0], a[1]));
    const __m256d high = _mm256_castps_pd(_mm256_unpackhi_ps(a[0], a[1]));
    const __m256d more_low = _mm256_castps_pd(_mm256_unpacklo_ps(a[2], a[3]));
    const __m256d more_high = _mm256_castps_pd(_mm256_unpackhi_ps(a[2], a[3]));
    store_floats(to, _mm256_castpd_ps(_mm256_unpacklo_pd(low, more_low)));
    store_floats(to + stride, _mm256_castpd_ps(_mm256_unpackhi_pd(low, more_low)));
    store_floats(to + 2 * stride, _mm256_castpd_ps(_mm256_unpacklo_pd(high, more_high)));
    store_floats(to + 3 * stride, _mm256_castpd_ps(_mm256_unpackhi_pd(high, more_high)));
}
