/* The choice of a tier. */
#include "api.h"

#include <stdatomic.h>
#include <string.h>

#include "tier.h"

#ifndef PL_SOURCES
#define PL_SOURCES ""
#endif

PL_API const char *pl_sources(void) { return PL_SOURCES; }

/* Of these, a library has those in `built`. */
extern const struct pl_tier pl_tier_portable, pl_tier_avx2, pl_tier_avxvnni, pl_tier_avx512vnni,
    pl_tier_avx512bf16, pl_tier_amx, pl_tier_dotprod, pl_tier_i8mm;

/* The best first. */
static const struct pl_tier *const built[] = {
#ifdef PL_HAS_AMX
    &pl_tier_amx,
#endif
#ifdef PL_HAS_AVX512BF16
    &pl_tier_avx512bf16,
#endif
#ifdef PL_HAS_AVX512VNNI
    &pl_tier_avx512vnni,
#endif
#ifdef PL_HAS_AVXVNNI
    &pl_tier_avxvnni,
#endif
#ifdef PL_HAS_AVX2
    &pl_tier_avx2,
#endif
#ifdef PL_HAS_I8MM
    &pl_tier_i8mm,
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
