/* Shared by both vector widths on x86: sums of eight floats, and rounding of rows to 8 bits. */
#ifndef PL_VEC_X86_H
#define PL_VEC_X86_H

#include <immintrin.h>
#include <stdint.h>

/* The sum: the second half is added to the first until one is left. */
static inline float sum_of_eight(__m256 of) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(of), _mm256_extractf128_ps(of, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float top_of_eight(__m256 of) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(of), _mm256_extractf128_ps(of, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* The sum of sixteen signed codes, by the instruction for unsigned bytes. */
static inline int32_t sum_of_codes(__m128i codes) {
    const __m128i bytes = _mm_xor_si128(codes, _mm_set1_epi8((char)0x80));
    const __m128i two = _mm_sad_epu8(bytes, _mm_setzero_si128());
    return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 2) - 16 * 128;
}

/* See rows.h. */
#define ROUNDS_GROUPS
static inline uint32_t largest_size(const float *group) {
    const __m256i sizes = _mm256_set1_epi32(0x7fffffff);
    __m256i eight = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
        const __m256i here = _mm256_loadu_si256((const __m256i *)(group + i));
        eight = _mm256_max_epu32(eight, _mm256_and_si256(here, sizes));
    }
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epu32(four, _mm_srli_si128(four, 8));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_srli_si128(four, 4)));
}

static inline void round_numbers(const float *group, float per, int8_t *codes, int32_t *sums) {
    const __m256 all = _mm256_set1_ps(per);
    for (int half = 0; half < 2; half++, group += 16) {
        const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(group), all));
        const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(group + 8), all));
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
        const __m128i bytes =
            _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        _mm_storeu_si128((__m128i *)(codes + 16 * half), bytes);
        sums[half] = sum_of_codes(bytes);
    }
}

#endif
