/* Where the rows of a pass over texts are, and what they see. */
#ifndef PL_PLACES_H
#define PL_PLACES_H

#include "program.h"

enum { PL_MOST_KINDS = 8 }; /* of what rows see */

/* Arrays as in pl_pass, for all rows; `keep` has the places of kept rows. */
struct pl_places {
    int64_t rows, kept;
    int64_t *positions, *where, *keep;
    int32_t *first[PL_MOST_KINDS], *count[PL_MOST_KINDS], *begins[PL_MOST_KINDS];
    int32_t *extra[PL_MOST_KINDS];
    struct pl_seen seen[PL_MOST_KINDS];
};

/* PL_OK, PL_NO_MEMORY or PL_BAD_ARGUMENT; free `positions` to release all memory. */
int pl_find_places(struct pl_places *of, const struct pl_texts *texts);

#endif
