/* Weights from scores, in the operations of a vec_*.h. */
#include <math.h>
#include <string.h>

enum { CHUNK = 16 };
#define IN_CHUNK (CHUNK / LANES)

/* The sum of sixteen sums, in the order of lanes. */
INLINE float sum_of_chunk(floats_t *sums) {
    UNROLL
    for (int half = IN_CHUNK / 2; half; half /= 2)
        for (int v = 0; v < half; v++) sums[v] = plus(sums[v], sums[v + half]);
    return sum_of_lanes(sums[0]);
}

/* e to the power of x, for x of at most 0; 0 below -87. */
INLINE floats_t power_of_e(floats_t x) {
    const floats_t rounding = same_floats(0x1.8p23f);
    const floats_t kept = largest(x, same_floats(-87.0f));
    const floats_t twos = minus(times_plus(kept, same_floats(0x1.715476p0f), rounding), rounding);
    floats_t rest = times_plus(twos, same_floats(-0x1.62e400p-1f), kept);
    rest = times_plus(twos, same_floats(-0x1.7f7d1cp-20f), rest);
    floats_t sum = same_floats(0x1.6850e4p-10f);
    sum = times_plus(sum, rest, same_floats(0x1.123bccp-7f));
    sum = times_plus(sum, rest, same_floats(0x1.555b98p-5f));
    sum = times_plus(sum, rest, same_floats(0x1.55548ep-3f));
    sum = times_plus(sum, rest, same_floats(0x1.fffff8p-2f));
    sum = times_plus(sum, rest, same_floats(1.0f));
    sum = times_plus(sum, rest, same_floats(1.0f));
    /* x - x keeps NaN. */
    return where_above(x, same_floats(-87.0f), plus(times_two_to(sum, twos), minus(x, x)));
}

/* Bends scores so that none exceeds the cap. */
static void bend(float cap, float *at, int64_t count) {
    for (int64_t i = 0; i < count; i++) at[i] = cap * tanhf(at[i] / cap);
}

/* Scores [count] -> weights: e to the power of score minus the largest score. found: that score, and
   the sum of the weights. `at` has room for a multiple of 16. */
static void weigh(float *at, int64_t count, float *found) {
    const int64_t whole = (count + CHUNK - 1) / CHUNK * CHUNK;
    for (int64_t i = count; i < whole; i++) at[i] = -INFINITY;
    floats_t most[IN_CHUNK], sums[IN_CHUNK];
    for (int v = 0; v < IN_CHUNK; v++) most[v] = same_floats(-INFINITY), sums[v] = no_floats();
    for (int64_t i = 0; i < whole; i += CHUNK)
        for (int v = 0; v < IN_CHUNK; v++)
            most[v] = largest(load_floats(at + i + v * LANES), most[v]);
    for (int v = 1; v < IN_CHUNK; v++) most[0] = largest(most[v], most[0]);
    const float top = top_of_lanes(most[0]);
    for (int64_t i = 0; i < whole; i += CHUNK)
        for (int v = 0; v < IN_CHUNK; v++) {
            float *here = at + i + v * LANES;
            const floats_t weight = power_of_e(minus(load_floats(here), same_floats(top)));
            store_floats(here, weight);
            sums[v] = plus(sums[v], weight);
        }
    found[0] = top, found[1] = sum_of_chunk(sums);
}
