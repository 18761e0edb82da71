/* What Python calls is visible outside the library, everything else is not. */
#ifndef PL_EXPORT_H
#define PL_EXPORT_H

#define PL_EXPORT __attribute__((visibility("default")))

#endif
