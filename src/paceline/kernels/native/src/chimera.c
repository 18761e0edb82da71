/* Chimera's draft, level by level; see chimera.py. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "guesses.h"
#include "level_tree.h"

enum { MOST_LEVELS = 8, MOST_ORDER = 8 };

/* A row of a level: the n-gram that it reads, and the slots after the text that it sees. */
struct row {
    int64_t ngram[MOST_ORDER], seen;
    int32_t slots[2 * MOST_LEVELS];
};

struct draft {
    struct pl_chimera *of;
    int threads;
    struct pl_level_rows level;
    int64_t known, drafted; /* tokens with columns; rows of the draft so far */
    struct row *rows, *next;
    struct pl_level_tree tree;
};

/* Green states of n-grams, `stride` numbers apart. */
static int encode(struct draft *on, const int64_t *ngrams, int64_t stride, int64_t count) {
    const struct pl_chimera *of = on->of;
    float *to = of->green.given;
    for (int64_t row = 0; row < count; row++)
        for (int64_t i = 0; i < of->order; i++, to += of->hidden) {
            const int64_t token = ngrams[row * stride + i];
            if (token < 0 || token >= of->words_count) return PL_BAD_ARGUMENT;
            pl_put_word(of->words, of->words_format, of->hidden, token, to);
        }
    return pl_run_part(&of->green, count, &on->level.pass, on->threads);
}

/* Columns of the tokens that the target has read. Their green states, and the root's, already exist. */
static int read_fresh(struct draft *on) {
    const struct pl_chimera *of = on->of;
    const size_t bytes = (size_t)of->hidden * sizeof(float);
    for (int64_t row = 0; row < of->fresh; row++) {
        float *to = of->read.given + 2 * of->hidden * row;
        memcpy(to, of->states + (of->length + row) * of->states_stride, bytes);
        memcpy(to + of->hidden, of->green.out + of->hidden * row, bytes);
        on->level.positions[row] = on->level.where[row] = of->length + row;
    }
    on->known = of->length + of->fresh;
    return of->fresh ? pl_run_part(&of->read, of->fresh, &on->level.pass, on->threads) : PL_OK;
}

/* One level: guesses after its rows, whose green states begin at `green`. */
static int grow_level(struct draft *on, int64_t depth, int64_t count, const float *green) {
    const struct pl_chimera *of = on->of;
    const struct pl_part *level = of->levels + depth;
    const size_t bytes = (size_t)of->hidden * sizeof(float);
    on->level.begins[0] = 0;
    for (int64_t row = 0; row < count; row++) {
        struct row *at = on->rows + row;
        const int32_t place = (int32_t)(on->known + on->drafted++);
        float *to = level->given + 2 * of->hidden * row;
        memcpy(to, green + of->hidden * row, bytes);
        memcpy(to + of->hidden, of->states + (on->known - 1) * of->states_stride, bytes);
        on->level.positions[row] = on->known + depth, on->level.where[row] = place;
        on->level.first[row] = 0, on->level.count[row] = (int32_t)(2 * on->known);
        /* Its own draft state, which its descendants see, is not known yet. */
        at->slots[at->seen] = 2 * place, at->slots[at->seen + 1] = 2 * place + 1;
        int32_t *extra = on->level.extra + on->level.begins[row];
        memcpy(extra, at->slots, (size_t)at->seen * sizeof *extra);
        extra[at->seen] = 2 * place + 1;
        on->level.begins[row + 1] = on->level.begins[row] + (int32_t)at->seen + 1;
        at->seen += 2;
    }
    const int failed = pl_run_part(level, count, &on->level.pass, on->threads);
    if (failed) return failed;
    pl_add_noise(&of->guesses, level->out, count, depth, 0);
    return pl_add_level(&on->tree, &of->guesses, level->out, count);
}

/* Rows of the next level: the likeliest nodes of this one. Returns how many; 0 ends the draft. */
static int64_t go_on(struct draft *on) {
    const struct pl_chimera *of = on->of;
    const struct pl_level_tree *tree = &on->tree;
    const int64_t count = pl_go_on(&on->tree, of->beam, of->least, of->end, of->grown);
    for (int64_t i = 0; i < count; i++) {
        struct row *to = on->next + i;
        *to = on->rows[tree->places[i] / of->guesses.ranks];
        memmove(to->ngram, to->ngram + 1, (size_t)(of->order - 1) * sizeof *to->ngram);
        to->ngram[of->order - 1] = tree->tokens[tree->above[i]];
    }
    struct row *rows = on->rows;
    on->rows = on->next, on->next = rows;
    return count;
}

static int grow(struct draft *on) {
    struct pl_chimera *of = on->of;
    int failed = encode(on, of->text, 1, of->fresh + 1);
    if (!failed) failed = read_fresh(on);
    if (failed) return failed;
    const float *green = of->green.out + of->fresh * of->hidden;
    *on->rows = (struct row){0};
    memcpy(on->rows->ngram, of->text + of->fresh, (size_t)of->order * sizeof *of->text);
    for (int64_t count = 1; !failed; of->grown++, green = of->green.out) {
        failed = grow_level(on, of->grown, count, green);
        if (failed || of->grown + 1 >= of->depth || of->grown + 1 >= of->guesses.budget) break;
        count = go_on(on);
        if (!count) break;
        failed = encode(on, on->rows->ngram, sizeof *on->rows / sizeof(int64_t), count);
    }
    of->grown++;
    return failed;
}

/* All memory of a draft, freed by the caller; NULL if there is none. */
static void *make_room(struct draft *on) {
    const struct pl_chimera *of = on->of;
    const size_t rows = (size_t)(of->beam > of->fresh + 1 ? of->beam : of->fresh + 1);
    const int64_t nodes = of->depth * of->beam * of->guesses.ranks + (int64_t)rows;
    const size_t of_tree = pl_bytes_of_tree(nodes);
    const size_t of_rows = 2 * rows * sizeof(struct row);
    char *memory = malloc(of_tree + of_rows + pl_bytes_of_rows(rows, 2 * MOST_LEVELS));
    if (!memory) return NULL;
    pl_use_tree(&on->tree, nodes, memory);
    on->rows = (struct row *)(memory + of_tree), on->next = on->rows + rows;
    pl_use_rows(&on->level, rows, memory + of_tree + of_rows);
    on->level.pass.tables = of->tables, on->level.pass.table_strides = of->table_strides;
    on->level.pass.layers = of->layers;
    return memory;
}

PL_API int pl_draft_chimera(struct pl_chimera *of, int threads) {
    const struct pl_guesses *to = &of->guesses;
    if (of->depth < 1 || of->depth > MOST_LEVELS || of->order < 1 || of->order > MOST_ORDER ||
        of->fresh < 0 || of->length + of->fresh < 1 || of->beam < 1 || to->ranks < 1 ||
        to->ranks > to->outputs || to->budget < 1)
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
