/* Weights are prefetched: memory is slow, and a core that multiplies several rows would leave it idle.
   While the first rows are multiplied with one block, a later one is fetched. */
#ifndef AHEAD
#define AHEAD 20480 /* bytes, at least */
#endif

/* Fetches the next `bytes`, unless `next` points to NULL. They should be the same in every step of a
   loop: processors mispredict a count that changes. The second level takes them: in the first, of 32
   or 48 KB, they would replace the rows and the block in use. */
INLINE void fetch(const uint8_t **next, const int64_t bytes) {
    if (!*next) return;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(*next + line, 0, 2);
    *next += bytes;
}

/* Blocks of some panels, and how many of them before its use one is fetched. */
struct ahead {
    int64_t bytes, blocks;
};

static struct ahead ahead_of(const struct pl_work *work, int panels) {
    const struct pl_matrix *matrix = work->matrix;
    const int64_t bytes = panels * pl_panel_bytes(matrix->format, matrix->inputs);
    return (struct ahead){bytes, (AHEAD + bytes - 1) / bytes};
}

/* What to fetch during a block. */
static const uint8_t *fetched_in(const struct pl_work *work, const struct ahead *of,
                                 int64_t block) {
    const int64_t later = block + of->blocks;
    if (later < work->last) return work->matrix->panels + later * of->bytes;
    return work->next ? work->next + (later - work->last) * of->bytes : NULL;
}
