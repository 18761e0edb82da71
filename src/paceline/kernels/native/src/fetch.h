/* Weights are prefetched: memory is slow, and a core that multiplies several rows would leave it idle.
   While one block is multiplied, a later one is fetched. */
#ifndef AHEAD
#define AHEAD 8192 /* bytes, at least */
#endif

struct stream {
    const uint8_t *at, *until;
    int64_t bytes; /* of a step */
};

/* Fetches one step. bytes: of a step if the compiler knows them, else 0. */
INLINE void fetch(struct stream *of, const int bytes) {
    if (bytes) {
        UNROLL
        for (int line = 0; line < bytes; line += 64) __builtin_prefetch(of->at + line);
        of->at += bytes;
    } else {
        for (of->until += of->bytes; of->at < of->until; of->at += 64) __builtin_prefetch(of->at);
    }
}

/* What to fetch in round `part` of `parts` over a block of `panels` panels, in `steps` steps each. */
static struct stream stream_of(const struct pl_work *work, const int panels, int64_t block,
                               int64_t part, int64_t parts, int64_t steps) {
    const struct pl_matrix *matrix = work->matrix;
    const int64_t bytes = panels * pl_panel_bytes(matrix->format, matrix->inputs);
    const int64_t later = block + (AHEAD + bytes - 1) / bytes;
    const uint8_t *at = matrix->panels + block * bytes; /* already fetched */
    if (later < work->last) at = matrix->panels + later * bytes;
    else if (work->next) at = work->next + (later - work->last) * bytes;
    at += bytes * part / parts;
    return (struct stream){at, at, (bytes / parts + steps - 1) / steps};
}
