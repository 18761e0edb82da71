/* EAGLE's draft, level by level; see eagle.py. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "guesses.h"
#include "level_tree.h"

enum { MOST_LEVELS = 32 };

/* A row of a level: the slots of guesses that it sees, its own last. */
struct row {
    int64_t seen;
    int32_t slots[MOST_LEVELS];
};

struct draft {
    struct pl_eagle *of;
    int threads;
    struct pl_level_rows level;
    int64_t known, drafted; /* rows of the text; of guesses so far */
    struct row *rows, *next;
    struct pl_level_tree tree;
};

/* A row's input: `width` numbers, and the embedding of its token. */
static int put_row(const struct pl_eagle *of, const float *before, int64_t width, int64_t token,
                   float *to) {
    if (token < 0 || token >= of->words_count) return PL_BAD_ARGUMENT;
    memcpy(to, before, (size_t)width * sizeof *to);
    pl_put_word(of->words, of->words_format, of->hidden, token, to + width);
    return PL_OK;
}

/* Rows of the text for what the target has newly read. */
static int read_fresh(struct draft *on) {
    const struct pl_eagle *of = on->of;
    on->known = of->length + of->fresh;
    if (!of->fresh) return PL_OK;
    memset(on->level.begins, 0, (size_t)(of->fresh + 1) * sizeof *on->level.begins);
    for (int64_t row = 0; row < of->fresh; row++) {
        const int64_t place = of->length + row;
        const int failed =
            put_row(of, of->states + place * of->states_stride, of->width, of->text[row],
                    of->read.given + row * (of->width + of->hidden));
        if (failed) return failed;
        on->level.positions[row] = on->level.where[row] = place;
        on->level.first[row] = 0, on->level.count[row] = (int32_t)(place + 1);
    }
    const int failed = pl_run_part(&of->read, of->fresh, &on->level.pass, on->threads);
    if (!failed)
        memcpy(of->root, of->read.out + (of->fresh - 1) * of->hidden,
               (size_t)of->hidden * sizeof *of->root);
    return failed;
}

/* Rows of guesses at one depth; those of the level before have just run. */
static int grow_level(struct draft *on, int64_t depth, int64_t count) {
    const struct pl_eagle *of = on->of;
    const struct pl_level_tree *tree = &on->tree;
    on->level.begins[0] = 0;
    for (int64_t row = 0; row < count; row++) {
        const int64_t before = tree->places[row] / of->guesses.ranks;
        const float *output = depth > 1 ? of->grow.out + before * of->hidden : of->root;
        const int failed = put_row(of, output, of->hidden, tree->tokens[tree->above[row]],
                                   of->grow.given + row * 2 * of->hidden);
        if (failed) return failed;
        struct row *at = on->next + row;
        *at = on->rows[before];
        const int64_t place = on->known + on->drafted++;
        at->slots[at->seen++] = (int32_t)place;
        on->level.positions[row] = on->known + depth - 1, on->level.where[row] = place;
        on->level.first[row] = 0, on->level.count[row] = (int32_t)on->known;
        memcpy(on->level.extra + on->level.begins[row], at->slots,
               (size_t)at->seen * sizeof *at->slots);
        on->level.begins[row + 1] = on->level.begins[row] + (int32_t)at->seen;
    }
    struct row *rows = on->rows;
    on->rows = on->next, on->next = rows;
    return pl_run_part(&of->grow, count, &on->level.pass, on->threads);
}

/* Guesses after the rows that have just run. */
static int guess(struct draft *on, float *outputs, int64_t count) {
    struct pl_part head = on->of->head;
    head.given = outputs;
    const int failed = pl_run_part(&head, count, &on->level.pass, on->threads);
    if (failed) return failed;
    pl_add_noise(&on->of->guesses, head.out, count, on->of->grown, 0);
    return pl_add_level(&on->tree, &on->of->guesses, head.out, count);
}

static int grow(struct draft *on) {
    struct pl_eagle *of = on->of;
    int failed = read_fresh(on);
    on->rows->seen = 0;
    for (int64_t count = 1; !failed; of->grown++) {
        failed = guess(on, of->grown ? of->grow.out : of->root, count);
        if (failed || of->grown + 1 >= of->depth || of->grown + 1 >= of->guesses.budget) break;
        count = pl_go_on(&on->tree, of->beam, of->least, of->end, of->grown);
        if (!count) break;
        failed = grow_level(on, of->grown + 1, count);
    }
    of->grown++;
    return failed;
}

/* All memory of a draft, freed by the caller; NULL if there is none. */
static void *make_room(struct draft *on) {
    const struct pl_eagle *of = on->of;
    const size_t rows = (size_t)(of->beam > of->fresh ? of->beam : of->fresh) + 1;
    const int64_t nodes = (of->depth * of->beam + 1) * of->guesses.ranks;
    const size_t of_tree = pl_bytes_of_tree(nodes);
    const size_t of_rows = 2 * rows * sizeof(struct row);
    char *memory = malloc(of_tree + of_rows + pl_bytes_of_rows(rows, MOST_LEVELS));
    if (!memory) return NULL;
    pl_use_tree(&on->tree, nodes, memory);
    on->rows = (struct row *)(memory + of_tree), on->next = on->rows + rows;
    pl_use_rows(&on->level, rows, memory + of_tree + of_rows);
    on->level.pass.tables = of->tables, on->level.pass.table_strides = of->table_strides;
    on->level.pass.layers = of->layers;
    return memory;
}

PL_API int pl_draft_eagle(struct pl_eagle *of, int threads) {
    const struct pl_guesses *to = &of->guesses;
    if (of->depth < 1 || of->depth > MOST_LEVELS || of->fresh < 0 || of->length < 0 ||
        of->length + of->fresh < 1 || of->beam < 1 || to->ranks < 1 || to->ranks > to->outputs ||
        to->budget < 1)
        return PL_BAD_ARGUMENT;
    struct draft on = {.of = of, .threads = threads};
    of->grown = 0;
    void *memory = make_room(&on);
    if (!memory) return PL_NO_MEMORY;
    const int failed = grow(&on);
    if (!failed) pl_take_best(&on.tree, &of->guesses);
    free(memory);
    return failed;
}
