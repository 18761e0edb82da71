/* Trees that grow level by level. */
#include "level_tree.h"

#include <stdlib.h>
#include <string.h>

#include "guesses.h"

size_t pl_bytes_of_rows(size_t rows, size_t extra) {
    return rows * (3 * sizeof(int64_t) + (3 + extra) * sizeof(int32_t)) + sizeof(int64_t);
}

void pl_use_rows(struct pl_level_rows *of, size_t rows, void *memory) {
    of->where = memory, of->positions = of->where + rows;
    int64_t *numbers = of->positions + rows;
    of->first = (int32_t *)(numbers + rows), of->count = of->first + rows;
    of->begins = of->count + rows, of->extra = of->begins + rows + 1;
    for (size_t i = 0; i < rows; i++) numbers[i] = (int64_t)i;
    of->seen = (struct pl_seen){of->first, of->count, of->begins, of->extra};
    of->pass = (struct pl_pass){
        .tokens = numbers, .keep = numbers, .positions = of->positions, .where = of->where,
        .seen = &of->seen,
    };
}

size_t pl_bytes_of_tree(int64_t nodes) {
    return (size_t)(nodes + 1) * (4 * sizeof(int64_t) + 2 * sizeof(double) + sizeof(float)) /
           8 * 8;
}

void pl_use_tree(struct pl_level_tree *of, int64_t nodes, void *memory) {
    of->nodes = of->first = 0;
    of->tokens = memory, of->parents = of->tokens + nodes;
    of->places = of->parents + nodes, of->above = of->places + nodes;
    of->path_chances = (double *)(of->above + nodes), of->sorted = of->path_chances + nodes;
    of->shares = (float *)(of->sorted + nodes);
    *of->above = -1;
}

int pl_add_level(struct pl_level_tree *to, const struct pl_guesses *of, const float *logits,
                 int64_t rows) {
    const int64_t ranks = of->ranks;
    double *path_chances = to->path_chances + to->nodes;
    to->first = to->nodes;
    const int failed =
        pl_guess(of, logits, rows, to->tokens + to->nodes, to->shares, path_chances);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < ranks; i++, path_chances++, to->nodes++) {
            const int64_t above = to->above[row];
            to->parents[to->nodes] = above;
            if (above >= 0) *path_chances *= to->path_chances[above];
        }
    return failed;
}

static int descending(const void *one, const void *other) {
    const double a = *(const double *)one, b = *(const double *)other;
    return (a < b) - (a > b);
}

/* Places of the `most` largest, the first among equals, in ascending order; returns how many. */
static int64_t find_best(struct pl_level_tree *in, const double *path_chances, int64_t count,
                         int64_t most) {
    int64_t found = 0, above = 0;
    double limit = -1;
    if (most < count) {
        memcpy(in->sorted, path_chances, (size_t)count * sizeof *path_chances);
        qsort(in->sorted, (size_t)count, sizeof *path_chances, descending);
        limit = in->sorted[most - 1];
    }
    for (int64_t i = 0; i < count; i++) above += path_chances[i] > limit;
    for (int64_t i = 0; i < count; i++) {
        const int equal = path_chances[i] == limit && above < most;
        above += equal;
        /* Of chances that are no numbers, the sorted ones have no order. */
        if (found < most && (path_chances[i] > limit || equal)) in->places[found++] = i;
    }
    return found;
}

int64_t pl_go_on(struct pl_level_tree *in, int64_t beam, double least,
                 const struct pl_chain_end *end, int64_t level) {
    const int64_t found = find_best(in, in->path_chances + in->first, in->nodes - in->first, beam);
    int64_t count = 0;
    double likely = 0;
    for (int64_t i = 0; i < found; i++) {
        const int64_t place = in->places[i], node = in->first + place;
        if (in->path_chances[node] < least) continue;
        in->places[count] = place, in->above[count++] = node;
        likely += in->path_chances[node];
    }
    if (!level) in->likely = 1, in->wanted = end ? end->path_chance : 1;
    if (!(likely > 0) || !pl_is_wanted(end, level, likely / in->likely, &in->wanted)) return 0;
    in->likely = likely;
    return count;
}

void pl_take_best(struct pl_level_tree *from, struct pl_guesses *to) {
    const int64_t *places = from->places;
    struct pl_tree *tree = &to->found;
    tree->nodes = find_best(from, from->path_chances, from->nodes, to->budget);
    for (int64_t i = 0; i < tree->nodes; i++) {
        const int64_t node = places[i], above = from->parents[node];
        int64_t parent = i - 1;
        while (above >= 0 && parent >= 0 && places[parent] != above) parent--;
        tree->tokens[i] = from->tokens[node], tree->weights[i] = from->path_chances[node];
        tree->parents[i] = above < 0 ? -1 : parent;
    }
}
