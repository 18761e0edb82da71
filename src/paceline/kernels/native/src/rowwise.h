/* Steps of a program that treat each row alone, in the operations of a vec_*.h.

   Loops over plain numbers are left to the compiler: it may not contract or reorder them, so all
   tiers compute the same bits. Sums run in 16 lanes that are added in halves. */
#include <math.h>
#include <string.h>

#include "program.h"

INLINE floats_t sigmoid_of(floats_t x) {
    const floats_t one = same_floats(1.0f), zero = no_floats();
    const floats_t e = power_of_e(minus(zero, largest(x, minus(zero, x))));
    return over(plus(where_above(x, zero, minus(one, e)), e), plus(one, e));
}

INLINE floats_t tanh_of(floats_t x) {
    const floats_t one = same_floats(1.0f), two = same_floats(2.0f);
    return minus(times(two, sigmoid_of(times(two, x))), one);
}

INLINE floats_t gelu_tanh_of(floats_t x) {
    const floats_t cube = times(times(x, x), x);
    const floats_t inner = times(same_floats(0.7978845608028654f),
                                 plus(x, times(same_floats(0.044715f), cube)));
    return times(x, sigmoid_of(times(same_floats(2.0f), inner)));
}

INLINE floats_t curve_of(const int function, floats_t x) {
    if (function == PL_SILU) return times(x, sigmoid_of(x));
    if (function == PL_SIGMOID) return sigmoid_of(x);
    if (function == PL_TANH) return tanh_of(x);
    return gelu_tanh_of(x);
}

INLINE void curve(const int function, const float *from, int64_t count, float *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_floats(to + i, curve_of(function, load_floats(from + i)));
    if (i == count) return;
    float rest[LANES] = {0};
    memcpy(rest, from + i, (size_t)(count - i) * sizeof *rest);
    store_floats(rest, curve_of(function, load_floats(rest)));
    memcpy(to + i, rest, (size_t)(count - i) * sizeof *rest);
}

/* to = function(from); both may be the same. */
static void apply(int function, const float *from, int64_t count, float *to) {
    switch (function) {
    case PL_SILU: curve(PL_SILU, from, count, to); break;
    case PL_SIGMOID: curve(PL_SIGMOID, from, count, to); break;
    case PL_TANH: curve(PL_TANH, from, count, to); break;
    case PL_GELU_TANH: curve(PL_GELU_TANH, from, count, to); break;
    case PL_GELU:
        for (int64_t i = 0; i < count; i++)
            to[i] = 0.5f * from[i] * (1.0f + erff(from[i] * 0.70710678118654752f));
        break;
    case PL_RELU:
        for (int64_t i = 0; i < count; i++) to[i] = from[i] < 0 ? 0 : from[i];
        break;
    case PL_SQUARE:
        for (int64_t i = 0; i < count; i++) to[i] = from[i] * from[i];
        break;
    case PL_CUBE:
        for (int64_t i = 0; i < count; i++) to[i] = from[i] * from[i] * from[i];
        break;
    case PL_RSQRT:
        for (int64_t i = 0; i < count; i++) to[i] = 1.0f / sqrtf(from[i]);
        break;
    default:
        if (to != from) memmove(to, from, (size_t)count * sizeof *to);
    }
}

#define JOIN(expression) \
    for (int64_t i = 0; i < count; i++) { \
        const float a = to[i], b = other[i * step]; \
        to[i] = (expression); \
    } \
    break

/* to = to joined with `other`, whose numbers are `step` apart: 1, or 0 for one number. */
INLINE void join_with(int join, const float *other, const int64_t step, int64_t count, float *to) {
    switch (join) {
    case PL_PLUS: JOIN(a + b);
    case PL_MINUS: JOIN(a - b);
    case PL_TIMES: JOIN(a * b);
    case PL_OVER: JOIN(a / b);
    case PL_FROM: JOIN(b - a);
    case PL_UNDER: JOIN(b / a);
    default: break;
    }
}

/* How many numbers from number `i` on are contiguous, or one and the same. */
static inline int64_t run_at(const struct pl_operand *of, int64_t i, int64_t most) {
    const int64_t left =
        of->each > 1 ? of->each - i % of->each : of->period > 1 ? of->period - i % of->period : most;
    return left < most ? left : most;
}

/* Writes `count` numbers of an operand, with repetitions, to `to`. */
static void spread(const struct pl_operand *of, const float *row, int64_t count, float *to) {
    for (int64_t i = 0, n; i < count; i += n) {
        const float *from = row + i / of->each % of->period;
        n = run_at(of, i, count - i);
        if (of->each > 1 || of->period == 1)
            for (int64_t j = 0; j < n; j++) to[i + j] = *from;
        else
            memmove(to + i, from, (size_t)n * sizeof *to);
    }
}

static void map_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    float *to = pl_out_of(step, pass, row);
    const float *in = pl_row_of(&step->in, pass, row);
    if (step->in.each == 1 && step->in.period >= step->count) {
        apply(step->function, in, step->count, to);
    } else {
        spread(&step->in, in, step->count, to);
        apply(step->function, to, step->count, to);
    }
    if (step->join == PL_ALONE) return;
    const struct pl_operand *of = &step->other;
    const float *other = pl_row_of(of, pass, row);
    for (int64_t i = 0, n; i < step->count; i += n) {
        const float *at = other + i / of->each % of->period;
        n = run_at(of, i, step->count - i);
        if (of->each > 1 || of->period == 1) join_with(step->join, at, 0, n, to + i);
        else join_with(step->join, at, 1, n, to + i);
    }
}

/* The sum of `count` numbers, minus `mean` each and optionally squared. */
INLINE float sum_of(const float *from, int64_t count, float mean, const int squared) {
    float rest[CHUNK] = {0};
    floats_t sums[IN_CHUNK];
    for (int v = 0; v < IN_CHUNK; v++) sums[v] = no_floats();
    int64_t i = 0;
    for (; i + CHUNK <= count; i += CHUNK)
        for (int v = 0; v < IN_CHUNK; v++) {
            const floats_t x = minus(load_floats(from + i + v * LANES), same_floats(mean));
            sums[v] = plus(sums[v], squared ? times(x, x) : x);
        }
    for (int j = 0; i + j < count; j++) {
        const float x = from[i + j] - mean;
        rest[j] = squared ? x * x : x;
    }
    for (int v = 0; i < count && v < IN_CHUNK; v++)
        sums[v] = plus(sums[v], load_floats(rest + v * LANES));
    return sum_of_chunk(sums);
}

static void mean_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const float *in = pl_row_of(&step->in, pass, row);
    float *to = pl_out_of(step, pass, row);
    for (int64_t s = 0; s < step->count; s++, in += step->size)
        to[s] = (step->function == PL_SQUARE ? sum_of(in, step->size, 0, 1)
                                             : sum_of(in, step->size, 0, 0)) /
                (float)step->size;
}

static void norm_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const float *in = pl_row_of(&step->in, pass, row), *scale = step->other.data;
    const float *shift = step->op == PL_LAYER_NORM ? step->third.data : NULL;
    float *to = pl_out_of(step, pass, row);
    const int64_t size = step->size;
    for (int64_t begin = 0; begin < step->count; begin += size, in += size, to += size) {
        const float mean = shift ? sum_of(in, size, 0, 0) / (float)size : 0;
        const float per =
            1.0f / sqrtf(sum_of(in, size, mean, 1) / (float)size + step->number);
        if (shift)
            for (int64_t i = 0; i < size; i++) to[i] = (in[i] - mean) * per * scale[i] + shift[i];
        else
            for (int64_t i = 0; i < size; i++) to[i] = in[i] * per * scale[i];
    }
}

static inline float in_order(const float *head, int32_t place) {
    return place < 0 ? -head[-place - 1] : head[place - 1];
}

/* Both halves of a head: low x by - high x with, high x by + low x with. */
static void turn_halves(const float *in, const float *by, const float *with, int64_t half,
                        float *to) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const floats_t low = load_floats(in + i), high = load_floats(in + half + i);
        store_floats(to + i, minus(times(low, load_floats(by + i)),
                                   times(high, load_floats(with + i))));
        store_floats(to + half + i, plus(times(high, load_floats(by + half + i)),
                                         times(low, load_floats(with + half + i))));
    }
    for (; i < half; i++) {
        const float low = in[i], high = in[i + half];
        to[i] = low * by[i] - high * with[i];
        to[i + half] = high * by[i + half] + low * with[i + half];
    }
}

static void rotate_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const float *in = pl_row_of(&step->in, pass, row);
    const float *by = pl_row_of(&step->other, pass, row), *with = pl_row_of(&step->third, pass, row);
    float *to = pl_out_of(step, pass, row);
    const int64_t size = step->size;
    for (int64_t begin = 0; begin < step->count; begin += size, in += size, to += size) {
        if (step->halves) turn_halves(in, by, with, size / 2, to);
        else
            for (int64_t i = 0; i < size; i++)
                to[i] = in[i] * by[i] + in_order(in, step->order[i]) * with[i];
    }
}

static void gather_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const float *in = pl_row_of(&step->in, pass, row);
    const float *other = pl_row_of(&step->other, pass, row);
    float *to = pl_out_of(step, pass, row);
    for (int64_t i = 0; i < step->count; i++) {
        const int32_t place = step->order[i];
        to[i] = place > PL_OTHER    ? other[place - PL_OTHER - 1]
                : place < -PL_OTHER ? -other[-place - PL_OTHER - 1]
                                    : in_order(in, place);
    }
}

static void scatter_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const float *in = pl_row_of(&step->in, pass, row);
    float *to = pl_out_of(step, pass, row);
    for (int64_t i = 0; i < step->count; i++) to[i] = step->number;
    for (int64_t i = 0; i < step->size; i++) to[step->order[i] - 1] = in[i];
}

static void embed_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    float *to = pl_out_of(step, pass, row);
    const int64_t token = pass->tokens[row];
    if (token >= step->outputs) memset(to, 0, (size_t)step->count * sizeof *to);
    else if (step->format < 0)
        memcpy(to, (const float *)step->panels + token * step->count,
               (size_t)step->count * sizeof *to);
    else
        pl_row_values((enum pl_format)step->format, step->panels, step->inputs, token, to);
}

static void given_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const int64_t token = pass->tokens[row] - step->outputs;
    if (token >= 0)
        memcpy(pl_out_of(step, pass, row), pass->given + token * step->count,
               (size_t)step->count * sizeof(float));
}

static void row_step(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    switch (step->op) {
    case PL_EMBED: embed_row(step, pass, row); break;
    case PL_GIVEN: given_row(step, pass, row); break;
    case PL_MAP: map_row(step, pass, row); break;
    case PL_MEAN: mean_row(step, pass, row); break;
    case PL_RMS_NORM:
    case PL_LAYER_NORM: norm_row(step, pass, row); break;
    case PL_ROTATE: rotate_row(step, pass, row); break;
    case PL_GATHER: gather_row(step, pass, row); break;
    case PL_SCATTER: scatter_row(step, pass, row); break;
    case PL_STORE: store_row(step, pass, row); break;
    case PL_STATES:
        if (pass->states)
            memcpy(pass->states + pass->where[row] * pass->states_stride + step->out_at,
                   pl_row_of(&step->in, pass, row), (size_t)step->count * sizeof(float));
        break;
    case PL_SELECT:
        memcpy(pl_out_of(step, pass, row), pl_row_of(&step->in, pass, pass->keep[row]),
               (size_t)step->count * sizeof(float));
        break;
    default: break;
    }
}

/* Steps [begin, end), without products and attentions, for rows [first, last). */
static void row_steps(const struct pl_step *begin, const struct pl_step *end,
                      const struct pl_pass *pass, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++)
        for (const struct pl_step *step = begin; step < end; step++) row_step(step, pass, row);
}
