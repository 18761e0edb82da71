/* Programs: a pass in one call.

   Steps that treat each row alone run together, row by row; products and attentions are cut into
   pieces. Threads take pieces of a phase and continue when all of it is done. No thread waits for one
   that has taken nothing: it may have lost its core. */
#include "program.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "api.h"
#include "multiply.h"
#include "threads.h"

/* Numbers that are worth another thread in a phase that treats rows alone; pieces per thread. */
enum { WORTH_SHARING = 2 << 10, PIECES_EACH = 2 };

struct phase {
    struct pl_shares shares;
    _Atomic int64_t done;
    int64_t count, size;
    const struct pl_step *begin, *end; /* of steps that treat rows alone */
    /* The product that rows are rounded for after these steps, or this phase's own. */
    struct pl_matrix matrix;
    struct pl_rows rows;
    struct pl_product product;
    struct pl_attention attention;
    enum { ROWS, PRODUCT, ATTENTION } kind;
    int rounds;
    int64_t numbers; /* of a row to round */
    struct phase *product_after; /* the next phase with a product; NULL for none */
};

struct running {
    const struct pl_tier *tier;
    const struct pl_pass *pass;
    struct phase *phases;
    int64_t count;
    int threads;
    _Atomic int here; /* threads that have arrived */
    struct pl_sharing sharing; /* enough for any of the attentions */
    void *shared;
};

/* A thread that does not arrive although there is work usually waits for this very core: a short sleep
   lets the system move one of the two to another. */
static void look_for_others(struct running *of) {
    for (int look = 0; look < 300 && of->here < of->threads; look++) pl_rest(look);
    if (of->here < of->threads) pl_rest(PL_PATIENCE);
}

/* Where thread `me` begins to read weights after this phase; NULL for nowhere. */
static const uint8_t *weights_after(const struct phase *phase, int me) {
    const struct phase *next = phase->product_after;
    return next ? pl_weights_at(&next->product, pl_first_of(&next->shares, me)) : NULL;
}

static void run_pieces(const struct running *of, struct phase *phase, int me,
                       const struct pl_taken *taken) {
    if (phase->kind == PRODUCT) {
        pl_run_product(&phase->product, taken, weights_after(phase, me));
    } else if (phase->kind == ATTENTION) {
        of->tier->rest->attend(&phase->attention, taken->first, taken->end,
                         pl_room_of(&of->sharing, of->shared, me));
    } else {
        of->tier->rest->row_steps(phase->begin, phase->end, of->pass, taken->first, taken->end);
        if (phase->rounds)
            pl_round_rows(of->tier, &phase->matrix, &phase->rows, phase->numbers, taken->first,
                          taken->end);
    }
}

static void take_part(void *given) {
    struct running *of = given;
    const int me = of->here++;
    for (struct phase *phase = of->phases; phase < of->phases + of->count; phase++) {
        for (struct pl_taken taken; pl_take(&phase->shares, me, &taken);) {
            run_pieces(of, phase, me, &taken);
            atomic_fetch_add_explicit(&phase->done, taken.end - taken.first, memory_order_release);
        }
        for (int look = 0;
             atomic_load_explicit(&phase->done, memory_order_acquire) < phase->count; look++)
            pl_rest(look);
        if (!me && phase == of->phases) look_for_others(of);
    }
}

static int64_t rows_of(const struct pl_pass *pass, int kept) {
    return kept ? pass->kept : pass->rows;
}

static struct pl_matrix matrix_of(const struct pl_step *step) {
    return (struct pl_matrix){(enum pl_format)step->format, step->outputs, step->inputs,
                              step->panels};
}

static int treats_rows_alone(const struct pl_step *step) {
    return step->op != PL_PRODUCT && step->op != PL_ATTEND;
}

/* Rows that a thread takes at once. Whole fours if they are rounded: threads that write to one four
   contend for its memory. */
static int64_t rows_of_piece(int64_t count, int64_t numbers, int threads, int rounds) {
    if (numbers * count < WORTH_SHARING) return count;
    const int64_t pieces = PIECES_EACH * threads, size = (count + pieces - 1) / pieces;
    return rounds ? (size + PL_FOUR - 1) / PL_FOUR * PL_FOUR : size;
}

/* Plans the steps from `step` on that treat the same rows alone, then the rounding for a product. */
static const struct pl_step *plan_rows(struct running *of, struct phase *phase,
                                       const struct pl_step *step, const struct pl_step *end,
                                       int *kept, void *room) {
    int64_t numbers = 0;
    phase->kind = ROWS, phase->begin = step;
    if (step->op == PL_SELECT) *kept = 1;
    for (; step < end && treats_rows_alone(step); step++) {
        if (step->op == PL_SELECT && step > phase->begin) break;
        numbers += step->op == PL_STORE ? step->key_heads * (step->size + step->count) : step->count;
    }
    phase->end = step, phase->count = rows_of(of->pass, *kept);
    if (step < end && step->op == PL_PRODUCT) {
        phase->matrix = matrix_of(step);
        phase->rows = pl_rows_in(room, &phase->matrix, phase->count,
                                 pl_row_of(&step->in, of->pass, 0), step->in.stride);
        phase->rounds = 1, phase->numbers = step->size, numbers += step->size;
    }
    phase->size = rows_of_piece(phase->count, numbers, of->threads, phase->rounds);
    if (phase->size < 1) phase->size = 1;
    return step;
}

static void plan_product(struct running *of, struct phase *phase, const struct pl_step *step,
                         int kept, void *room) {
    phase->kind = PRODUCT, phase->matrix = matrix_of(step);
    phase->rows = pl_rows_in(room, &phase->matrix, rows_of(of->pass, kept),
                             pl_row_of(&step->in, of->pass, 0), step->in.stride);
    phase->product = pl_plan_product(of->tier, &phase->matrix, &phase->rows, step->bias,
                                     pl_out_of(step, of->pass, 0), step->out_stride);
    phase->count = pl_product_pieces(&phase->product);
    phase->size = pl_product_size(&phase->product, of->threads);
}

static int plan_attention(struct running *of, struct phase *phase, const struct pl_step *step,
                          struct pl_range *ranges) {
    struct pl_sharing needed;
    const struct pl_layer *layer = of->pass->layers + step->layer;
    const struct pl_seen *seen = of->pass->seen + step->seen;
    phase->kind = ATTENTION;
    phase->attention = (struct pl_attention){
        .rows = of->pass->rows, .heads = step->heads, .key_heads = step->key_heads,
        .size = step->size, .value_size = step->count / step->heads,
        .query = pl_row_of(&step->in, of->pass, 0),
        .query_head = step->size, .query_row = step->in.stride,
        .keys = layer->keys, .key_head = layer->key_head, .key_slot = layer->key_slot,
        .values = layer->values, .value_head = layer->value_head,
        .value_slot = layer->value_slot,
        .first = seen->first, .count = seen->count,
        .extra_begin = seen->extra_begin, .extra = seen->extra,
        .out = pl_out_of(step, of->pass, 0), .scale = step->number, .cap = step->cap,
        .kind = (int32_t)of->pass->cache_kind,
    };
    phase->count =
        pl_plan_attention(of->tier, &phase->attention, ranges, of->threads, &needed);
    phase->size = 1;
    if (needed.records > of->sharing.records) of->sharing.records = needed.records;
    if (needed.counts > of->sharing.counts) of->sharing.counts = needed.counts;
    if (needed.room > of->sharing.room) of->sharing.room = needed.room;
    return phase->count >= 0;
}

/* Allocates what parts of attentions share; whether there is memory. */
static int share(struct running *of) {
    of->shared = pl_share(&of->sharing, of->threads);
    for (struct phase *phase = of->phases; of->shared && phase < of->phases + of->count; phase++)
        if (phase->kind == ATTENTION) pl_use_shared(&phase->attention, &of->sharing, of->threads, of->shared);
    return of->shared != NULL;
}

static int plan(struct running *of, const struct pl_step *steps, const struct pl_step *end,
                struct pl_range *ranges, void *room) {
    int kept = 0;
    for (const struct pl_step *step = steps; step < end;) {
        struct phase *phase = of->phases + of->count++;
        const struct phase *before = of->count > 1 ? phase - 1 : NULL;
        if (step->op == PL_ATTEND) {
            if (!plan_attention(of, phase, step++, ranges)) return 0;
            ranges += of->pass->rows + 1;
        } else if (step->op == PL_PRODUCT && before && before->rounds) {
            plan_product(of, phase, step++, kept, room);
        } else {
            step = plan_rows(of, phase, step, end, &kept, room);
        }
        /* Units of attention differ in length, long ones first: threads take them one by one. */
        const int shares = phase->kind == ATTENTION ? 1 : of->threads;
        pl_share_out(&phase->shares, phase->count, phase->size, shares);
    }
    struct phase *after = NULL;
    for (struct phase *phase = of->phases + of->count; phase-- > of->phases;) {
        phase->product_after = after;
        if (phase->kind == PRODUCT) after = phase;
    }
    return 1;
}

static int is_sound(const struct pl_step *step, const struct pl_step *end,
                    const struct pl_pass *pass) {
    if (pass->rows < 1 || pass->kept < 0 || pass->kept > pass->rows) return 0;
    if (pass->cache_kind < 0 || pass->cache_kind >= PL_KINDS || pass->cache_kind == PL_BFLOAT16)
        return 0;
    for (int64_t i = 0; i < pass->kept; i++)
        if (pass->keep[i] < 0 || pass->keep[i] >= pass->rows) return 0;
    for (int64_t row = 0; pass->table_rows && row < pass->rows; row++)
        if (pass->positions[row] < 0 || pass->positions[row] >= pass->table_rows) return 0;
    for (; step < end; step++) {
        if (step->op < 0 || step->op >= PL_OPS) return 0;
        if (step->op == PL_PRODUCT && !pl_packed_bytes(step->format, step->outputs, step->inputs))
            return 0;
        if (step->op == PL_EMBED)
            for (int64_t row = 0; row < pass->rows; row++)
                if (pass->tokens[row] < 0 ||
                    pass->tokens[row] >= step->outputs + pass->given_count)
                    return 0;
    }
    return 1;
}

PL_API int pl_run(const struct pl_step *steps, int64_t count, const struct pl_pass *pass,
                  int threads) {
    const struct pl_step *end = steps + count;
    if (count < 1 || !is_sound(steps, end, pass)) return PL_BAD_ARGUMENT;
    size_t room = 0, attentions = 0, most = 1; /* phases */
    for (const struct pl_step *step = steps; step < end; step++) {
        const struct pl_matrix matrix = matrix_of(step);
        const size_t needed = step->op == PL_PRODUCT ? pl_room_for(&matrix, pass->rows) : 0;
        room = needed > room ? needed : room;
        attentions += step->op == PL_ATTEND;
        /* The phase of rows before it, and its own. */
        most += step->op == PL_PRODUCT || step->op == PL_ATTEND ? 2 : step->op == PL_SELECT;
    }
    const size_t ranges = attentions * (size_t)(pass->rows + 1) * sizeof(struct pl_range);
    const size_t phases = most * sizeof(struct phase);
    char *memory = calloc(1, phases + ranges + room);
    if (!memory) return PL_NO_MEMORY;
    struct running of = {.tier = pl_current_tier(), .pass = pass, .threads = threads};
    of.phases = (struct phase *)memory;
    const int planned =
        plan(&of, steps, end, (struct pl_range *)(memory + phases), memory + phases + ranges);
    if (planned && share(&of)) pl_together(take_part, &of, threads);
    const int result = !planned ? PL_BAD_ARGUMENT : of.shared ? PL_OK : PL_NO_MEMORY;
    free(of.shared);
    free(memory);
    return result;
}
