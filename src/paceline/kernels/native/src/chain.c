#define _POSIX_C_SOURCE 200809L
/* Passes of which each reads the likeliest token of the one before. */
#include <stdlib.h>
#include <time.h>

#include "api.h"
#include "program.h"

enum { MOST_KINDS = 8 }; /* of what rows see */

/* What describes the rows of all passes. */
struct places {
    int64_t *positions, *where;
    int32_t *first[MOST_KINDS], *count[MOST_KINDS], *begins;
};

/* Memory for `whole` rows, to be freed by its `positions`; whether there is any. */
static int make_places(struct places *of, int64_t whole, int64_t kinds) {
    const size_t row = 2 * sizeof(int64_t) + (size_t)(2 * kinds + 1) * sizeof(int32_t);
    of->positions = calloc((size_t)whole + 1, row);
    if (!of->positions) return 0;
    of->where = of->positions + whole;
    int32_t *next = (int32_t *)(of->where + whole);
    for (int64_t kind = 0; kind < kinds; kind++, next += 2 * whole)
        of->first[kind] = next, of->count[kind] = next + whole;
    of->begins = next; /* all are 0: rows see their stretches only */
    return 1;
}

static void fill_places(const struct places *of, const struct pl_chain *chain, int64_t whole) {
    for (int64_t row = 0; row < whole; row++) {
        const int64_t position = chain->cached + row;
        of->positions[row] = position, of->where[row] = chain->start + position;
        for (int64_t kind = 0; kind < chain->kinds; kind++) {
            const int64_t window = chain->windows[kind];
            const int64_t lowest = window && position >= window ? position - window + 1 : 0;
            of->first[kind][row] = (int32_t)(chain->start + lowest);
            of->count[kind][row] = (int32_t)(position + 1 - lowest);
        }
    }
}

/* The arrays of the row behind those of a pass. */
static void go_on(struct pl_pass *pass, struct pl_seen *seen, int64_t kinds) {
    static const int64_t only = 0;
    for (int64_t kind = 0; kind < kinds; kind++)
        seen[kind].first += pass->rows, seen[kind].count += pass->rows;
    pass->tokens += pass->rows, pass->positions += pass->rows, pass->where += pass->rows;
    pass->rows = pass->kept = 1, pass->keep = &only;
}

static double chance_of(const struct pl_chain_end *end, int64_t place, double share) {
    const double claim = share < end->low ? end->low : share > end->high ? end->high : share;
    int64_t column = 0;
    while (column < end->columns - 1 && claim >= end->borders[column]) column++;
    const double *line = end->lines + 2 * (end->rows[place] * end->columns + column);
    const double believed = claim * end->trust;
    return line[0] + line[1] * (believed < end->high ? believed : end->high);
}

int pl_is_wanted(const struct pl_chain_end *end, int64_t place, double share, double *reach) {
    if (!end) return 1;
    *reach *= chance_of(end, place, share);
    return share >= end->share && *reach >= end->least[place];
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int run_passes(const struct pl_step *steps, int64_t count, struct pl_pass *pass,
                      struct pl_seen *seen, struct pl_chain *chain, int threads) {
    int64_t *next = chain->reads + pass->rows, *found = chain->tokens;
    float *shares = chain->shares;
    double reach = chain->end ? chain->end->reach : 1, began = now();
    for (chain->made = 0; chain->made < chain->count; found += chain->most, shares += chain->most) {
        int failed = pl_run(steps, count, pass, threads);
        const int64_t place = chain->made++;
        if (failed || !chain->most) return failed;
        failed = pl_likeliest(pass->logits, 1, chain->numbers, chain->most, found, shares);
        if (failed) return failed;
        for (int64_t i = 0; chain->ids && i < chain->most; i++) found[i] = chain->ids[found[i]];
        const double ended = now();
        chain->seconds[place] = ended - began, began = ended;
        if (chain->made == chain->count || !pl_is_wanted(chain->end, place, shares[0], &reach)) break;
        *next++ = found[0];
        go_on(pass, seen, chain->kinds);
    }
    return PL_OK;
}

PL_API int pl_run_chain(const struct pl_step *steps, int64_t count, const struct pl_pass *first,
                        struct pl_chain *chain, int threads) {
    const int64_t whole = first->rows + chain->count - 1;
    if (chain->kinds < 0 || chain->kinds > MOST_KINDS || first->rows < 1 || chain->count < 1)
        return PL_BAD_ARGUMENT;
    struct places places;
    if (!make_places(&places, whole, chain->kinds)) return PL_NO_MEMORY;
    fill_places(&places, chain, whole);
    struct pl_seen seen[MOST_KINDS];
    for (int64_t kind = 0; kind < chain->kinds; kind++)
        seen[kind] = (struct pl_seen){places.first[kind], places.count[kind], places.begins, NULL};
    struct pl_pass pass = *first;
    const int64_t last = pass.rows - 1;
    pass.tokens = chain->reads, pass.positions = places.positions, pass.where = places.where;
    pass.kept = 1, pass.keep = &last, pass.seen = seen;
    const int failed = run_passes(steps, count, &pass, seen, chain, threads);
    free(places.positions);
    return failed;
}
