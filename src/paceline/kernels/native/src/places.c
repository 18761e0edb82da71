#include "places.h"

#include <stdlib.h>

#include "api.h"

/* How many nodes there are from the root down to this one, without the root. */
static int64_t depth_of(const int64_t *parents, int64_t node) {
    int64_t depth = 0;
    for (; node >= 0; node = parents[node]) depth++;
    return depth;
}

/* Counts rows, kept rows, and nodes on the paths to all nodes. Returns whether the texts make sense. */
static int measure(struct pl_places *of, const struct pl_texts *texts, int64_t *paths) {
    const int64_t *parents = texts->parents;
    of->rows = of->kept = *paths = 0;
    if (texts->count < 1 || texts->kinds < 0 || texts->kinds > PL_MOST_KINDS) return 0;
    for (int64_t i = 0; i < texts->count; i++) {
        const struct pl_text *text = texts->each + i;
        if (text->start < 0 || text->cached < 0 || text->pending < 1 || text->nodes < 0) return 0;
        for (int64_t node = 0; node < text->nodes; node++) {
            if (parents[node] < -1 || parents[node] >= node) return 0;
            *paths += depth_of(parents, node);
        }
        parents += text->nodes;
        of->rows += text->pending + text->nodes;
        of->kept += text->kept ? 1 + text->nodes : 0;
    }
    return 1;
}

static int reserve(struct pl_places *of, int64_t kinds, int64_t paths) {
    const int64_t ints = kinds * (3 * of->rows + 1 + paths);
    of->positions = malloc((size_t)(2 * of->rows + of->kept) * sizeof(int64_t) +
                           (size_t)ints * sizeof(int32_t));
    if (!of->positions) return 0;
    of->where = of->positions + of->rows, of->keep = of->where + of->rows;
    int32_t *next = (int32_t *)(of->keep + of->kept);
    for (int64_t kind = 0; kind < kinds; kind++) {
        of->first[kind] = next, of->count[kind] = next + of->rows;
        of->begins[kind] = next + 2 * of->rows, of->extra[kind] = next + 3 * of->rows + 1;
        of->seen[kind] = (struct pl_seen){of->first[kind], of->count[kind], of->begins[kind],
                                          of->extra[kind]};
        of->begins[kind][0] = 0;
        next += 3 * of->rows + 1 + paths;
    }
    return 1;
}

/* Fills in the row of node `node` of a tree, at depth `depth` below a root at position `root`. Node -1
   at depth 0: a row of the text itself, at position `root`. */
static void fill_row(const struct pl_places *of, const struct pl_texts *texts,
                     const struct pl_text *text, const int64_t *parents, int64_t row, int64_t root,
                     int64_t node, int64_t depth) {
    const int64_t position = root + depth, tree_at = text->start + root + 1;
    of->positions[row] = position;
    for (int64_t kind = 0; kind < texts->kinds; kind++) {
        const int64_t window = texts->windows[kind];
        const int64_t lowest = window && position >= window ? position - window + 1 : 0;
        const int64_t first = lowest <= root ? lowest : root + 1;
        of->first[kind][row] = (int32_t)(text->start + first);
        of->count[kind][row] = (int32_t)(root + 1 - first);
        /* The end of the path, as far as the window reaches. */
        int32_t *begin = of->extra[kind] + of->begins[kind][row];
        const int64_t seen = lowest <= root + 1 ? depth : position - lowest + 1;
        for (int64_t at = seen, each = node; at > 0; each = parents[each])
            begin[--at] = (int32_t)(tree_at + each);
        of->begins[kind][row + 1] = of->begins[kind][row] + (int32_t)seen;
    }
}

int pl_find_places(struct pl_places *of, const struct pl_texts *texts) {
    int64_t paths, row = 0, kept = 0;
    if (!measure(of, texts, &paths)) return PL_BAD_ARGUMENT;
    if (!reserve(of, texts->kinds, paths)) return PL_NO_MEMORY;
    const int64_t *parents = texts->parents;
    for (int64_t i = 0; i < texts->count; i++) {
        const struct pl_text *text = texts->each + i;
        const int64_t rows = text->pending + text->nodes, root = text->cached + text->pending - 1;
        for (int64_t place = 0; place < rows; place++, row++) {
            const int64_t node = place - text->pending;
            of->where[row] = text->start + text->cached + place;
            if (node < 0) fill_row(of, texts, text, parents, row, text->cached + place, -1, 0);
            else fill_row(of, texts, text, parents, row, root, node, depth_of(parents, node));
            if (text->kept && node >= -1) of->keep[kept++] = row;
        }
        parents += text->nodes;
    }
    return PL_OK;
}

PL_API int pl_run_texts(const struct pl_step *steps, int64_t count, const struct pl_pass *given,
                        const struct pl_texts *texts, int threads) {
    struct pl_places places;
    int failed = pl_find_places(&places, texts);
    if (failed) return failed;
    struct pl_pass pass = *given;
    pass.tokens = texts->tokens, pass.positions = places.positions, pass.where = places.where;
    pass.keep = places.keep, pass.seen = places.seen;
    const int same = pass.rows == places.rows && pass.kept == places.kept;
    failed = same ? pl_run(steps, count, &pass, threads) : PL_BAD_ARGUMENT;
    free(places.positions);
    return failed;
}
