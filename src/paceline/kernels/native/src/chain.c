#define _POSIX_C_SOURCE 200809L
/* Passes that each read the likeliest token of the one before. */
#include <stdlib.h>
#include <time.h>

#include "api.h"
#include "places.h"

/* Advances arrays to the row after those of a pass. */
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

int pl_is_wanted(const struct pl_chain_end *end, int64_t place, double share, double *path_chance) {
    if (!end) return 1;
    *path_chance *= chance_of(end, place, share);
    return share >= end->share && *path_chance >= end->least[place];
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
    double path_chance = chain->end ? chain->end->path_chance : 1, began = now();
    for (chain->made = 0; chain->made < chain->count; found += chain->most, shares += chain->most) {
        int failed = pl_run(steps, count, pass, threads);
        const int64_t place = chain->made++;
        if (failed || !chain->most) return failed;
        failed = pl_likeliest(pass->logits, 1, chain->numbers, chain->most, found, shares);
        if (failed) return failed;
        for (int64_t i = 0; chain->ids && i < chain->most; i++) found[i] = chain->ids[found[i]];
        const double ended = now();
        chain->seconds[place] = ended - began, began = ended;
        if (chain->made == chain->count || !pl_is_wanted(chain->end, place, shares[0], &path_chance)) break;
        *next++ = found[0];
        go_on(pass, seen, chain->kinds);
    }
    return PL_OK;
}

PL_API int pl_run_chain(const struct pl_step *steps, int64_t count, const struct pl_pass *first,
                        struct pl_chain *chain, int threads) {
    if (first->rows < 1 || chain->count < 1) return PL_BAD_ARGUMENT;
    const struct pl_text whole = {chain->start, chain->cached, first->rows + chain->count - 1, 0, 0};
    const struct pl_texts text = {1, chain->kinds, &whole, NULL, NULL, chain->windows};
    struct pl_places places;
    int failed = pl_find_places(&places, &text);
    if (failed) return failed;
    struct pl_pass pass = *first;
    const int64_t last = pass.rows - 1;
    pass.tokens = chain->reads, pass.positions = places.positions, pass.where = places.where;
    pass.kept = 1, pass.keep = &last, pass.seen = places.seen;
    failed = run_passes(steps, count, &pass, places.seen, chain, threads);
    free(places.positions);
    return failed;
}
