/* The choice of a tier, and products. */
#include "api.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "threads.h"
#include "tier.h"

#ifndef PL_SOURCES
#define PL_SOURCES ""
#endif

PL_API const char *pl_sources(void) { return PL_SOURCES; }

extern const struct pl_tier pl_tier_portable;
#ifdef PL_HAS_AVX2
extern const struct pl_tier pl_tier_avx2;
#endif
#ifdef PL_HAS_AVXVNNI
extern const struct pl_tier pl_tier_avxvnni;
#endif
#ifdef PL_HAS_AVX512VNNI
extern const struct pl_tier pl_tier_avx512vnni;
#endif
#ifdef PL_HAS_DOTPROD
extern const struct pl_tier pl_tier_dotprod;
#endif

/* The best first. */
static const struct pl_tier *const built[] = {
#ifdef PL_HAS_AVX512VNNI
    &pl_tier_avx512vnni,
#endif
#ifdef PL_HAS_AVXVNNI
    &pl_tier_avxvnni,
#endif
#ifdef PL_HAS_AVX2
    &pl_tier_avx2,
#endif
#ifdef PL_HAS_DOTPROD
    &pl_tier_dotprod,
#endif
    &pl_tier_portable,
};
enum { BUILT = sizeof built / sizeof *built };

static const struct pl_tier *_Atomic chosen;

static int runs_here(const struct pl_tier *tier) {
#ifdef PL_EMULATE
    (void)tier;
    return 1;
#else
    return tier == &pl_tier_portable || pl_cpu_has(tier->name);
#endif
}

const struct pl_tier *pl_current_tier(void) {
    const struct pl_tier *tier = atomic_load_explicit(&chosen, memory_order_acquire);
    for (int i = 0; !tier; i++)
        if (runs_here(built[i])) {
            tier = built[i];
            atomic_store_explicit(&chosen, tier, memory_order_release);
        }
    return tier;
}

PL_API const char *pl_tiers(void) {
    static _Thread_local char names[128];
    names[0] = 0;
    for (int i = 0; i < BUILT; i++)
        if (runs_here(built[i])) {
            if (names[0]) strcat(names, ",");
            strcat(names, built[i]->name);
        }
    return names;
}

PL_API int pl_use_tier(const char *name) {
    for (int i = 0; i < BUILT; i++)
        if (!strcmp(built[i]->name, name) && runs_here(built[i])) {
            atomic_store_explicit(&chosen, built[i], memory_order_release);
            return PL_OK;
        }
    return PL_BAD_ARGUMENT;
}

PL_API const char *pl_tier(void) { return pl_current_tier()->name; }

/* Memory for the rows of one product, to be freed; NULL where there is none. */
static void *find_room(struct pl_rows *rows) {
    const size_t groups = (size_t)(rows->count * rows->groups);
    void *room = malloc(groups * (PL_GROUP + 2 * sizeof(float) + 2 * sizeof(int32_t)));
    rows->scale = room;
    if (!room) return NULL;
    rows->sum = rows->scale + groups;
    rows->start = (int32_t *)(rows->sum + groups);
    rows->codes = (int8_t *)(rows->start + 2 * groups);
    return room;
}

struct product {
    const struct pl_tier *tier;
    struct pl_work work;
};

static void run_piece(void *given, int64_t first, int64_t end) {
    const struct product *product = given;
    product->tier->run(&product->work, first, end);
}

struct rounding {
    const struct pl_tier *tier;
    enum pl_format format;
    const float *from;
    int64_t inputs;
    struct pl_rows *rows;
};

static void round_rows(void *given, int64_t first, int64_t end) {
    const struct rounding *of = given;
    for (int64_t place = first; place < end; place++)
        of->tier->quantise(of->format, of->from + place * of->inputs, of->inputs, of->rows, place);
}

/* Bytes that are worth waking another thread for; it takes some microseconds. */
enum { WORTH_THREADS = 48 << 10, ROWS_AT_ONCE = 256 };

static int some_rows(const struct pl_matrix *matrix, const float *from, int64_t count,
                     const float *bias, float *out, int64_t stride, int threads) {
    const struct pl_tier *tier = pl_current_tier();
    struct pl_rows rows = {.count = count, .groups = pl_groups(matrix->inputs)};
    void *room = find_room(&rows);
    if (!room) return PL_NO_MEMORY;
    void (*const share)(void (*)(void *, int64_t, int64_t), void *, int64_t, int64_t, int) =
        count < PL_MANY_ROWS ? pl_in_pieces : pl_in_large_pieces;
    struct rounding of = {tier, matrix->format, from, matrix->inputs, &rows};
    share(round_rows, &of, count, 16, threads);
    struct product product = {tier, {matrix, &rows, bias, out, stride}};
    const int64_t blocks = (matrix->outputs + tier->outputs - 1) / tier->outputs;
    const int64_t bytes = blocks * tier->outputs / PL_PANEL *
                          pl_panel_bytes(matrix->format, matrix->inputs);
    if (bytes * (count + 3) / 4 < WORTH_THREADS) threads = 1;
    int64_t size = blocks / (threads * 6);
    share(run_piece, &product, blocks, size > 1 ? size : 1, threads);
    free(room);
    return PL_OK;
}

PL_API int pl_product(int format, const uint8_t *panels, int64_t outputs, int64_t inputs,
                      const float *rows, int64_t count, const float *bias, float *out,
                      int64_t stride, int threads) {
    if (!pl_packed_bytes(format, outputs, inputs) || count < 0 || stride < outputs)
        return PL_BAD_ARGUMENT;
    const struct pl_matrix matrix = {(enum pl_format)format, outputs, inputs, panels};
    for (int64_t done = 0; done < count; done += ROWS_AT_ONCE) {
        const int64_t some = count - done < ROWS_AT_ONCE ? count - done : ROWS_AT_ONCE;
        const int failed = some_rows(&matrix, rows + done * inputs, some, bias,
                                     out + done * stride, stride, threads);
        if (failed) return failed;
    }
    return PL_OK;
}
