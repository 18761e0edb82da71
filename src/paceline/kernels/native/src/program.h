/* A pass as a list of steps.

   Every value is some numbers per row; rows interact only in attention. A step reads and writes
   buffers of one arena: a buffer that begins at `buffer` has its first row at arena + buffer x rows. */
#ifndef PL_PROGRAM_H
#define PL_PROGRAM_H

#include "blocks.h"
#include "tier.h"

enum pl_op {
    PL_EMBED,      /* out: the numbers of the row's token */
    PL_GIVEN,      /* out: for a token beyond the vocabulary, the numbers given for it */
    PL_MAP,        /* out = function(in), joined with `other` */
    PL_MEAN,       /* out: the mean of function(in), per segment */
    PL_RMS_NORM,   /* out = in / sqrt(mean of squares + number) x other, per segment */
    PL_LAYER_NORM, /* out = (in - mean) / sqrt(variance + number) x other + third, per segment */
    PL_ROTATE,     /* out = in x other + (in, reordered and with changed signs) x third */
    PL_GATHER,     /* out = in, reordered and with changed signs */
    PL_PRODUCT,    /* out = in x matrix + bias */
    PL_STORE,      /* keys (in) and values (other) go to the layer's cache */
    PL_ATTEND,     /* out: attention of queries (in) over the layer's cache */
    PL_STATES,     /* in goes to the cache of states, from out_at on */
    PL_SELECT,     /* out = in of the kept rows; all later steps run on these */
    PL_SCATTER,    /* out = number, except `size` numbers of in, each at its place in `order` */
    PL_OPS
};

enum pl_function {
    PL_SAME, PL_SILU, PL_GELU, PL_GELU_TANH, PL_RELU, PL_TANH, PL_SIGMOID, PL_SQUARE, PL_CUBE,
    PL_RSQRT, PL_FUNCTIONS
};

enum pl_join { PL_ALONE, PL_PLUS, PL_MINUS, PL_TIMES, PL_OVER, PL_FROM, PL_UNDER, PL_JOINS };

/* Numbers that a step reads: number i of a row is at place i / each % period, from `at` on, of
   - `data`, the same for all rows, if not NULL;
   - the entry for the row's position in the pass's table `table`, if not negative;
   - else the row in a buffer: of kept rows if `table` is PL_OF_KEPT, of all rows otherwise. */
enum { PL_OF_ROWS = -1, PL_OF_KEPT = -2 };

struct pl_operand {
    const float *data;
    int64_t table, buffer, stride, at, period, each;
};

/* count: numbers per row of the output. size: of a segment or head, or of a product's input.
   order [size]: places in a head, counted from 1; negative: with the sign flipped; beyond PL_OTHER:
   a place in `other`. of_kept: out is a buffer of kept rows. */
enum { PL_OTHER = 1 << 24 };

struct pl_step {
    int32_t op, function, join, layer, seen, halves;
    int64_t count, size, heads, key_heads;
    struct pl_operand in, other, third;
    int64_t out_buffer, out_stride, out_at; /* buffer -1: the logits of the pass */
    const int32_t *order;
    int32_t format;
    float number, cap;
    int32_t of_kept;
    int64_t outputs, inputs;
    const void *panels; /* of a matrix, or a float32 table if the format is -1 */
    const float *bias;
};

/* A layer's cache, with strides by head and slot in bytes. */
struct pl_layer {
    char *keys, *values;
    int64_t key_head, key_slot, value_head, value_slot;
};

/* Heads of a cache, with slots of `bytes` bytes each; `head` and `slot` are strides in bytes. */
struct pl_store {
    char *begin;
    int64_t heads, head, slot, bytes;
};

/* What rows see, see pl_attention. */
struct pl_seen {
    const int32_t *first, *count, *extra_begin, *extra;
};

struct pl_pass {
    int64_t rows, kept, given_count, states_stride;
    const int64_t *tokens, *positions, *where, *keep;
    const float *given; /* [given_count, numbers of an embedding] */
    const float *const *tables;
    const int64_t *table_strides;
    const struct pl_layer *layers;
    const struct pl_seen *seen;
    float *arena, *arena_of_kept, *logits, *states; /* NULL: states are not kept */
    int64_t cache_kind; /* enum pl_kind: of keys and values */
    int64_t table_rows; /* of each table: all positions must be below; 0 if the caller knows they are */
};

/* A text of a pass; texts follow one another. It has the slots from `start` on, of which the first
   `cached` hold tokens. It reads `pending` tokens, the root last, then the `nodes` nodes of a tree
   below the root. kept: whether the logits of the root and of the nodes are wanted. */
struct pl_text {
    int64_t start, cached, pending, nodes, kept;
};

/* tokens: of all rows. parents: of all nodes, by number in their tree; -1 is the root. windows
   [kinds]: the most slots that rows see, by kind of layer; 0 for all. */
struct pl_texts {
    int64_t count, kinds;
    const struct pl_text *each;
    const int64_t *tokens, *parents, *windows;
};

/* Where a chain of guesses ends; see `ChainEnd` in chains.py.

   share: a token with a smaller share is the last. path_chance: the chance of what the chain follows.
   least [passes]: after each pass, the chance below which the chain ends. A token's chance is a
   linear function of its share, lines [rows, columns] of offset and slope: the row is `rows` at its
   place, the column the class of its share. borders [columns - 1]: where the classes after the first
   begin. Shares are clamped to `low` ... `high`, multiplied by `trust`, and again at most `high`. */
struct pl_chain_end {
    double share, path_chance, trust, low, high;
    const double *least, *borders, *lines;
    const int64_t *rows;
    int64_t columns;
};

/* Whether to run another pass after the one at `place`, whose guess has this share; always if `end` is
   NULL. `path_chance`: the chance of all guesses before, to be multiplied by this one's. */
int pl_is_wanted(const struct pl_chain_end *end, int64_t place, double share, double *path_chance);

/* Consecutive passes; each reads the likeliest token of the one before.

   count: of passes, at most. most: tokens to return for each; 0 means a single pass. numbers: only
   the first `numbers` scores count; ids [numbers]: their tokens, NULL if these equal their places.
   start: the text's first slot. cached: tokens there. windows [kinds]: the most slots that rows see,
   by kind of layer; 0 for all. reads: the tokens of the first pass, with room after them. end: NULL
   to end only at `count`.
   Results: made: passes. tokens, shares [made, most]: see pl_likeliest. seconds [made]: of passes. */
struct pl_chain {
    int64_t count, most, numbers, kinds, start, cached, made;
    const int64_t *ids, *windows;
    const struct pl_chain_end *end;
    int64_t *reads, *tokens;
    float *shares;
    double *seconds;
};

/* Address of an operand for a row; `row` counts the step's rows. */
static inline const float *pl_row_of(const struct pl_operand *of, const struct pl_pass *pass,
                                     int64_t row) {
    if (of->data) return of->data + of->at;
    if (of->table >= 0)
        return pass->tables[of->table] + pass->positions[row] * pass->table_strides[of->table] +
               of->at;
    float *begin = of->table == PL_OF_KEPT ? pass->arena_of_kept + of->buffer * pass->kept
                                           : pass->arena + of->buffer * pass->rows;
    return begin + row * of->stride + of->at;
}

static inline float *pl_out_of(const struct pl_step *step, const struct pl_pass *pass,
                               int64_t row) {
    float *begin = step->out_buffer < 0 ? pass->logits
                   : step->of_kept      ? pass->arena_of_kept + step->out_buffer * pass->kept
                                        : pass->arena + step->out_buffer * pass->rows;
    return begin + row * step->out_stride + step->out_at;
}

/* The numbers of one output of a packed matrix. */
void pl_row_values(enum pl_format format, const uint8_t *panels, int64_t inputs, int64_t id,
                   float *out);

/* Memory that attention needs: records that parts of ranges share, see attend.h, counts of parts that
   are done, and room for each thread. */
struct pl_sharing {
    int64_t records, counts; /* floats; ints, all 0 at first */
    int64_t room;            /* floats, a multiple of 16 */
};

/* Finds `ranges` [at least rows + 1] for an attention on `threads` threads, and the memory it needs.
   Returns its number of units, or -1 for sizes that make no sense. */
int64_t pl_plan_attention(const struct pl_tier *tier, struct pl_attention *of,
                          struct pl_range *ranges, int threads, struct pl_sharing *needed);

/* That memory, for `threads` threads, its counts set to 0. Freed by `free`; NULL if there is none. */
void *pl_share(const struct pl_sharing *needed, int threads);
/* Points `of` to its parts of that memory. */
void pl_use_shared(struct pl_attention *of, const struct pl_sharing *needed, int threads,
                   void *memory);
float *pl_room_of(const struct pl_sharing *needed, void *memory, int me);

#endif
