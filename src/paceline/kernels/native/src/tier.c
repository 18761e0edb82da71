/* Compiled once per tier: -DPL_TIER=name, with the flags of its instructions. */
#define IS_portable 0
#define IS_avx2 1
#define IS_avxvnni 2
#define IS_avx512vnni 3
#define IS_avx512bf16 4
#define IS_dotprod 5
#define IS_i8mm 6
#define IS_amx 7
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define TIER_NUMBER PASTE(IS_, PL_TIER)

#if TIER_NUMBER == 1
#include "vec_avx2.h"
#elif TIER_NUMBER == 2
#define PL_VNNI
#include "vec_avx2.h"
#elif TIER_NUMBER == 3
#include "vec_avx512.h"
#elif TIER_NUMBER == 4
#define PL_BF16_PRODUCTS
#define ADDED PL_BF16_DOT
#define ADDED_TO pl_tier_avx512vnni
#include "vec_avx512.h"
#elif TIER_NUMBER == 7
#define PL_TILES
#define ADDED PL_BF16_TILES
#define ADDED_TO pl_tier_avx512bf16
#include "vec_avx512.h"
#elif TIER_NUMBER == 5
#include "vec_neon.h"
#elif TIER_NUMBER == 6
#define PL_I8MM
#include "vec_neon.h"
#else
#include "vec_portable.h"
#endif

#include "panels.h"

/* A block has at least one panel. */
_Static_assert(OUTPUTS % PL_PANEL == 0 && FLOAT_OUTPUTS % PL_PANEL == 0,
               "blocks are made of whole panels");

#ifdef ADDED

/* A tier that differs from another only in how it multiplies one format. */
#if TIER_NUMBER == 4
#include "floats.h"
#else
#include "tiles.h"
#endif

extern const struct pl_tier pl_tier_avx512vnni, ADDED_TO;

static void run(const struct pl_work *work, int64_t first, int64_t end) {
    if (work->matrix->format == ADDED) PASTE(run_, ADDED)(work, first, end);
    else ADDED_TO.run(work, first, end);
}

const struct pl_tier PASTE(pl_tier_, PL_TIER) = {
    .name = TEXT(PL_TIER), .run = run, .rest = &pl_tier_avx512vnni,
};

#else

#include "half.h"
#include "products.h"
#include "floats.h"
#include "tiles.h"
#include "rows.h"

#include "softmax.h"
#include "scores.h"
#include "attend.h"
#include "blockwise.h"
#include "store.h"
#include "likeliest.h"
#include "rowwise.h"

static void run(const struct pl_work *work, int64_t first, int64_t end) {
    static void (*const of[PL_FORMATS])(const struct pl_work *, int64_t, int64_t) = {
        run_PL_Q4_0, run_PL_Q4_1, run_PL_Q5_0, run_PL_Q5_1, run_PL_Q8_0, run_PL_Q4_K,
        run_PL_Q5_K, run_PL_Q6_K, run_PL_F32,  run_PL_F16,  run_PL_BF16,
        run_PL_BF16_DOT, run_PL_BF16_TILES,
    };
    of[work->matrix->format](work, first, end);
}

const struct pl_tier PASTE(pl_tier_, PL_TIER) = {
    TEXT(PL_TIER), run, &PASTE(pl_tier_, PL_TIER),
    OUTPUTS, FLOAT_OUTPUTS, quantise, attend, attend_room, row_steps, likeliest,
};

#endif
