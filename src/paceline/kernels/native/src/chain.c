/* Passes of which each reads the likeliest token of the one before. */
#include "api.h"
#include "program.h"

enum { MOST_KINDS = 8 }; /* of what rows see */

/* The arrays of the row behind those of a pass. */
static void go_on(struct pl_pass *pass, struct pl_seen *seen, int64_t kinds) {
    static const int64_t only = 0;
    for (int64_t kind = 0; kind < kinds; kind++)
        seen[kind].first += pass->rows, seen[kind].count += pass->rows;
    pass->tokens += pass->rows, pass->positions += pass->rows, pass->where += pass->rows;
    pass->rows = pass->kept = 1, pass->keep = &only;
}

PL_API int pl_run_chain(const struct pl_step *steps, int64_t count, const struct pl_pass *first,
                        const struct pl_chain *chain, int threads) {
    if (chain->kinds < 0 || chain->kinds > MOST_KINDS || first->kept != 1) return PL_BAD_ARGUMENT;
    struct pl_seen seen[MOST_KINDS];
    struct pl_pass pass = *first;
    int64_t *next = chain->reads + pass.rows, *found = chain->tokens;
    float *shares = chain->shares;
    for (int64_t kind = 0; kind < chain->kinds; kind++) seen[kind] = first->seen[kind];
    pass.seen = seen;
    for (int64_t i = 0; i < chain->count; i++, found += chain->most, shares += chain->most) {
        int failed = pl_run(steps, count, &pass, threads);
        if (!failed)
            failed = pl_likeliest(pass.logits, 1, chain->numbers, chain->most, found, shares);
        if (failed) return failed;
        for (int64_t place = 0; chain->ids && place < chain->most; place++)
            found[place] = chain->ids[found[place]];
        if (i + 1 < chain->count) *next++ = found[0];
        go_on(&pass, seen, chain->kinds);
    }
    return PL_OK;
}
