/* Move slots of a cache. */
#include <string.h>

#include "api.h"
#include "program.h"

static void move_slots(const struct pl_store *in, const int64_t *from, const int64_t *to,
                       int64_t count) {
    char *head = in->begin;
    for (int64_t h = 0; h < in->heads; h++, head += in->head)
        for (int64_t i = 0; i < count; i++)
            memmove(head + to[i] * in->slot, head + from[i] * in->slot, (size_t)in->bytes);
}

PL_API int pl_move(const struct pl_store *stores, int64_t count, const int64_t *from,
                   const int64_t *to, int64_t moves) {
    for (const struct pl_store *each = stores; each < stores + count; each++)
        move_slots(each, from, to, moves);
    return PL_OK;
}
