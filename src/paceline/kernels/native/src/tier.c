/* Compiled once for every tier: -DPL_TIER=name, with the flags of its instructions. */
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
#include "vec_avx512.h"
#elif TIER_NUMBER == 7
#define PL_BF16_PRODUCTS
#define PL_TILES
#include "vec_avx512.h"
#elif TIER_NUMBER == 5
#include "vec_neon.h"
#elif TIER_NUMBER == 6
#define PL_I8MM
#include "vec_neon.h"
#else
#include "vec_portable.h"
#endif

#include "half.h"
#include "products.h"
#include "rows.h"

#include "softmax.h"
#include "scores.h"
#include "attend.h"
#include "blockwise.h"
#include "store.h"
#include "likeliest.h"
#include "rowwise.h"

/* A block has at least a panel. */
_Static_assert(OUTPUTS % PL_PANEL == 0 && FLOAT_OUTPUTS % PL_PANEL == 0, "blocks are made of whole panels");

const struct pl_tier PASTE(pl_tier_, PL_TIER) = {
    TEXT(PL_TIER), OUTPUTS, FLOAT_OUTPUTS, quantise, run, attend, attend_room, row_steps, likeliest,
};
