/* What Python asks of the library as a whole. */

#include <string.h>

#include "cpu.h"
#include "export.h"

/* Compiled in, best first. */
static const char *const compiled[] = {
#ifdef PL_HAS_AVX512VNNI
    "avx512vnni",
#endif
#ifdef PL_HAS_AVXVNNI
    "avxvnni",
#endif
#ifdef PL_HAS_AVX2
    "avx2",
#endif
#ifdef PL_HAS_I8MM
    "i8mm",
#endif
#ifdef PL_HAS_DOTPROD
    "dotprod",
#endif
    "portable",
};

static char usable[128];

/* When the library is opened, so that no two threads ever write. */
__attribute__((constructor)) static void find_usable(void) {
    for (unsigned i = 0; i < sizeof compiled / sizeof compiled[0]; i++) {
        if (!pl_cpu_has(compiled[i]))
            continue;
        if (usable[0])
            strcat(usable, ",");
        strcat(usable, compiled[i]);
    }
}

PL_EXPORT const char *pl_sources(void);
PL_EXPORT const char *pl_tiers(void);

/* The hash of the sources, as build.py has it. */
const char *pl_sources(void) { return PL_SOURCES; }

/* The tiers that are compiled in and that this processor runs, best first: "avx2,portable". */
const char *pl_tiers(void) { return usable; }
