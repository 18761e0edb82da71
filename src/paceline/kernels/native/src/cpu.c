/* What this processor can do. The tiers are those of build.py: a tier's test here must check all
   instructions that it is compiled with. */

#include "api.h"

#include <string.h>

static int portable(void) { return 1; }

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>

#define BIT(word, bit) (((word) >> (bit)) & 1u)

struct registers {
    unsigned eax, ebx, ecx, edx;
};

/* CPUID's leaf; zeros if this processor does not have it. */
static struct registers leaf(unsigned number, unsigned part) {
    struct registers found = {0, 0, 0, 0};
    if (__get_cpuid_max(0, 0) >= number)
        __cpuid_count(number, part, found.eax, found.ebx, found.ecx, found.edx);
    return found;
}

/* Whether the operating system saves all these registers when it switches threads. */
static int saves(uint64_t wanted) {
    unsigned low, high;
    if (!BIT(leaf(1, 0).ecx, 27)) /* OSXSAVE: XGETBV is available */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((((uint64_t)high << 32) | low) & wanted) == wanted;
}

static int avx2(void) {
    unsigned base = leaf(1, 0).ecx;
    return saves(0x6) /* xmm, ymm */
           && BIT(base, 28) /* AVX */ && BIT(base, 12) /* FMA */ && BIT(base, 29) /* F16C */
           && BIT(leaf(7, 0).ebx, 5) /* AVX2 */;
}

static int avxvnni(void) {
    /* The number of leaf 7's last part is in eax of its part 0. */
    return avx2() && leaf(7, 0).eax >= 1 && BIT(leaf(7, 1).eax, 4);
}

static int avx512vnni(void) {
    struct registers more = leaf(7, 0);
    return avx2() && saves(0xe6) /* xmm, ymm, masks, zmm */
           && BIT(more.ebx, 16) /* F */ && BIT(more.ebx, 17) /* DQ */ && BIT(more.ebx, 30) /* BW */
           && BIT(more.ebx, 31) /* VL */ && BIT(more.ecx, 11) /* VNNI */;
}

static int avx512bf16(void) {
    return avx512vnni() && leaf(7, 0).eax >= 1 && BIT(leaf(7, 1).eax, 5);
}

#if defined(__linux__)

#include <sys/syscall.h>

long syscall(long number, ...); /* unistd.h declares it only in GNU's dialect */

/* Linux saves tiles for processes that asked for them: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA. */
static int may_use_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023L, 18L); }

#else

static int may_use_tiles(void) { return 0; }

#endif

static int amx(void) {
    unsigned more = leaf(7, 0).edx;
    return avx512bf16() && saves(0x600e6) /* also tile shapes and tiles */
           && BIT(more, 24) /* TILE */ && BIT(more, 22) /* BF16 */ && may_use_tiles();
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

/* By number: older headers do not name all of them. */
static int has(unsigned long kind, unsigned bit) { return (getauxval(kind) >> bit) & 1u; }

static int dotprod(void) {
    return has(AT_HWCAP, 20)                       /* ASIMDDP */
           && has(AT_HWCAP, 9) && has(AT_HWCAP, 10) /* FPHP, ASIMDHP */
           && has(AT_HWCAP, 8) && has(AT_HWCAP, 12) /* ATOMICS, ASIMDRDM: of ARMv8.1 */;
}

static int i8mm(void) { return dotprod() && has(AT_HWCAP2, 13); }

#elif defined(__aarch64__) && defined(__APPLE__)

#include <sys/sysctl.h>

/* Every processor of Apple's computers has these: the M1 is an ARMv8.5. */
static int dotprod(void) { return 1; }

static int i8mm(void) { /* from the M2 on */
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, NULL, 0) && found;
}

#endif

static const struct {
    const char *name;
    int (*test)(void);
} tiers[] = {
    {"portable", portable},
#if defined(__x86_64__)
    {"avx2", avx2},
    {"avxvnni", avxvnni},
    {"avx512vnni", avx512vnni},
    {"avx512bf16", avx512bf16},
    {"amx", amx},
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
    {"dotprod", dotprod},
    {"i8mm", i8mm},
#endif
};

int pl_cpu_has(const char *tier) {
    for (unsigned i = 0; i < sizeof tiers / sizeof tiers[0]; i++)
        if (strcmp(tiers[i].name, tier) == 0)
            return tiers[i].test();
    return 0;
}
