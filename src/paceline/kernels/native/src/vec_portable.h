/* Sixteen outputs in plain C: right everywhere, fast nowhere. The other tiers are tested against it. */
#define UNROLL /* unrolled, it takes nearly twice as long to compile, and runs no faster */

#include <math.h>
#include <stdint.h>

#include "half.h"

#define LANES 16
#define COLUMNS 1
#define TOGETHER 1
#define FLOAT_COLUMNS 1
#define ROWS_OF_SCORES 1
#define CHUNKS_OF_SCORES 1
#define ROWS_OF_VALUES 1
#define MOST_ROWS 4
#define ROWS_OF_FLOATS 2

typedef struct { uint8_t at[4 * LANES]; } bytes_t;
typedef struct { int32_t at[LANES]; } sums_t;
typedef sums_t part_t;
typedef struct { float at[LANES]; } floats_t;

#define EACH(type, count, expression) \
    do { \
        type made; \
        for (int i = 0; i < (count); i++) made.at[i] = (expression); \
        return made; \
    } while (0)

static inline bytes_t load_bytes(const uint8_t *from) { EACH(bytes_t, 4 * LANES, from[i]); }
static inline bytes_t low_half(bytes_t both) { EACH(bytes_t, 4 * LANES, both.at[i] & 15); }
static inline bytes_t high_half(bytes_t both) { EACH(bytes_t, 4 * LANES, both.at[i] >> 4); }
static inline bytes_t bit_as_16(bytes_t bits, int place) {
    EACH(bytes_t, 4 * LANES, (uint8_t)((bits.at[i] >> place & 1) << 4));
}
static inline bytes_t pair_as_16(bytes_t bits, int place) {
    EACH(bytes_t, 4 * LANES, (uint8_t)((bits.at[i] >> 2 * place & 3) << 4));
}
static inline bytes_t join(bytes_t one, bytes_t other) {
    EACH(bytes_t, 4 * LANES, one.at[i] | other.at[i]);
}

static inline sums_t sums_at(const int32_t *at) { EACH(sums_t, LANES, *at); }
static inline sums_t no_sums(void) { EACH(sums_t, LANES, 0); }
static inline part_t no_part(void) { return no_sums(); }

#define DOTS_BEFORE_WIDENING(bits) 1000
#define SIGNED_ZERO 0
static inline part_t dot(part_t part, bytes_t codes, const int8_t *four) {
    for (int i = 0; i < 4 * LANES; i++) part.at[i / 4] += codes.at[i] * four[i % 4];
    return part;
}
static inline sums_t widen(sums_t sums, part_t part) {
    EACH(sums_t, LANES, sums.at[i] + part.at[i]);
}
static inline bytes_t signed_codes(bytes_t codes) { return codes; }
static inline sums_t signed_dot(sums_t sums, bytes_t codes, const int8_t *four) {
    for (int i = 0; i < 4 * LANES; i++) sums.at[i / 4] += (int8_t)codes.at[i] * four[i % 4];
    return sums;
}

static inline floats_t same_floats(float value) { EACH(floats_t, LANES, value); }
static inline floats_t no_floats(void) { return same_floats(0); }
static inline floats_t load_floats(const float *from) { EACH(floats_t, LANES, from[i]); }
static inline void store_floats(float *to, floats_t from) {
    for (int i = 0; i < LANES; i++) to[i] = from.at[i];
}
static inline floats_t to_floats(sums_t sums) { EACH(floats_t, LANES, (float)sums.at[i]); }
static inline floats_t halfs(const uint8_t *from) { EACH(floats_t, LANES, pl_half(from + 2 * i)); }
static inline floats_t brains(const uint8_t *from) {
    EACH(floats_t, LANES, pl_brain(from + 2 * i));
}
/* One of the two bfloat16 numbers in the place of a float. */
static inline floats_t upper_brains(floats_t both) {
    EACH(floats_t, LANES, pl_brain((const uint8_t *)(both.at + i) + 2));
}
static inline floats_t lower_brains(floats_t both) {
    EACH(floats_t, LANES, pl_brain((const uint8_t *)(both.at + i)));
}
static inline floats_t unsigned_bytes(const uint8_t *from) {
    EACH(floats_t, LANES, (float)from[i]);
}
static inline floats_t signed_bytes(const uint8_t *from) {
    EACH(floats_t, LANES, (float)(int8_t)from[i]);
}
static inline floats_t times(floats_t a, floats_t b) { EACH(floats_t, LANES, a.at[i] * b.at[i]); }
static inline floats_t times_plus(floats_t a, floats_t b, floats_t c) {
    EACH(floats_t, LANES, fmaf(a.at[i], b.at[i], c.at[i]));
}
static inline floats_t minus_times_plus(floats_t a, floats_t b, floats_t c) {
    EACH(floats_t, LANES, fmaf(-a.at[i], b.at[i], c.at[i]));
}
static inline floats_t plus(floats_t a, floats_t b) { EACH(floats_t, LANES, a.at[i] + b.at[i]); }
static inline floats_t minus(floats_t a, floats_t b) { EACH(floats_t, LANES, a.at[i] - b.at[i]); }
static inline floats_t over(floats_t a, floats_t b) { EACH(floats_t, LANES, a.at[i] / b.at[i]); }
/* b where either is NaN, like x86's instructions. */
static inline floats_t largest(floats_t a, floats_t b) {
    EACH(floats_t, LANES, a.at[i] > b.at[i] ? a.at[i] : b.at[i]);
}
/* Value where x is above the limit or NaN; 0 elsewhere. */
static inline floats_t where_above(floats_t x, floats_t limit, floats_t value) {
    EACH(floats_t, LANES, x.at[i] <= limit.at[i] ? 0.0f : value.at[i]);
}
static inline float first_lane(floats_t of) { return of.at[0]; }
/* The sum of lanes: the second half is added to the first until one is left. */
static inline float sum_of_lanes(floats_t of) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) of.at[i] += of.at[i + half];
    return of.at[0];
}
/* The largest lane; none may be NaN. */
static inline float top_of_lanes(floats_t of) {
    float top = of.at[0];
    for (int i = 1; i < LANES; i++) top = of.at[i] > top ? of.at[i] : top;
    return top;
}
/* value x 2^power, for whole powers whose result is not subnormal. */
static inline floats_t times_two_to(floats_t value, floats_t power) {
    EACH(floats_t, LANES, ldexpf(value.at[i], (int)power.at[i]));
}
/* Four numbers of each of LANES rows, to four columns `stride` apart. */
static inline void turn_four(const float *const *rows, float *to, int64_t stride) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < LANES; j++) to[i * stride + j] = rows[j][i];
}
