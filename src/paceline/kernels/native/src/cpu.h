/* What this processor can do. */
#ifndef PL_CPU_H
#define PL_CPU_H

#include "api.h"

/* 1 if this processor and its operating system run code of this tier, else 0. */
PL_API int pl_cpu_has(const char *tier);

#endif
