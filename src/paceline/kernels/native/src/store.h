/* Writes keys and values to the cache, in a format of enum pl_kind. */
#include <math.h>
#include <string.h>

#include "program.h"

/* A group of PL_INT8 as codes, the largest 127, and their scale. Infinity or NaN in the group makes the
   scale NaN. */
static void round_group(const float *from, int64_t count, int8_t *codes, char *scale) {
    float most = 0;
    for (int64_t i = 0; i < count; i++) {
        const float size = fabsf(from[i]);
        most = size > most || size != size ? size : most;
    }
    /* 127 over a very small number would be infinite. */
    const int some = most >= 0x1p-120f, whole = most <= 0x1.fffffep127f;
    const float per = some && whole ? 127.0f / most : 0.0f;
    const float unit = whole ? (some ? most / 127.0f : 0.0f) : NAN;
    for (int64_t i = 0; i < count; i++)
        codes[i] = (int8_t)(whole ? (from[i] * per + 0x1.8p23f) - 0x1.8p23f : 0.0f);
    memcpy(scale, &unit, sizeof unit);
}

/* Writes `size` numbers of a head to its place in a slot. */
static void store_numbers(int kind, const float *from, int64_t size, char *to) {
    if (kind == PL_FLOAT16) {
        for (int64_t i = 0; i < size; i++) pl_to_half(from[i], (uint8_t *)to + 2 * i);
    } else if (kind == PL_INT8) {
        for (int64_t i = 0; i < size; i += PL_SCALED)
            round_group(from + i, size - i < PL_SCALED ? size - i : PL_SCALED, (int8_t *)to + i,
                        to + size + i / PL_SCALED * (int64_t)sizeof(float));
    } else {
        memcpy(to, from, (size_t)size * sizeof *from);
    }
}

static void store_row(const struct pl_step *step, const struct pl_pass *pass, int64_t row) {
    const struct pl_layer *layer = pass->layers + step->layer;
    const float *keys = pl_row_of(&step->in, pass, row);
    const float *values = pl_row_of(&step->other, pass, row);
    char *key = layer->keys + pass->where[row] * layer->key_slot;
    char *value = layer->values + pass->where[row] * layer->value_slot;
    for (int64_t head = 0; head < step->key_heads; head++) {
        store_numbers((int)pass->cache_kind, keys, step->size, key);
        store_numbers((int)pass->cache_kind, values, step->count, value);
        keys += step->size, values += step->count;
        key += layer->key_head, value += layer->value_head;
    }
}
