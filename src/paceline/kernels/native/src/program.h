/* A pass as a list of steps.

   Every value is numbers of a row; rows meet in attention only. A step reads and writes buffers of
   one arena: a buffer that begins at `buffer` has its first row at arena + buffer x rows. */
#ifndef PL_PROGRAM_H
#define PL_PROGRAM_H

#include "blocks.h"
#include "tier.h"

enum pl_op {
    PL_EMBED,      /* out: the numbers of the row's token */
    PL_GIVEN,      /* out: of tokens beyond the vocabulary the numbers that were given for them */
    PL_MAP,        /* out = function(in), joined with `other` */
    PL_MEAN,       /* out: the means of function(in), a segment each */
    PL_RMS_NORM,   /* out = in / sqrt(mean of squares + number) x other, by segments */
    PL_LAYER_NORM, /* out = (in - mean) / sqrt(variance + number) x other + third, by segments */
    PL_ROTATE,     /* out = in x other + in in another order and with other signs x third */
    PL_GATHER,     /* out = in in another order and with other signs */
    PL_PRODUCT,    /* out = in x matrix + bias */
    PL_STORE,      /* keys (in) and values (other) go to the layer's cache */
    PL_ATTEND,     /* out: what queries (in) take from the layer's cache */
    PL_STATES,     /* in goes to the cache of states, from out_at on */
    PL_SELECT,     /* out = in of the rows that are kept; all later steps are of these */
    PL_SCATTER,    /* out = number, but for `size` numbers of in, each at its place of `order` */
    PL_OPS
};

enum pl_function {
    PL_SAME, PL_SILU, PL_GELU, PL_GELU_TANH, PL_RELU, PL_TANH, PL_SIGMOID, PL_SQUARE, PL_CUBE,
    PL_RSQRT, PL_FUNCTIONS
};

enum pl_join { PL_ALONE, PL_PLUS, PL_MINUS, PL_TIMES, PL_OVER, PL_FROM, PL_UNDER, PL_JOINS };

/* Numbers that a step reads: number i of a row is at place i / each % period of
   - `data`, the same for all rows, where that is not NULL;
   - the row's position in table `table` of the pass, where that is not negative;
   - else the row of a buffer, from `at` on, which is one of the rows that are kept where `table` is
     PL_OF_KEPT. */
enum { PL_OF_ROWS = -1, PL_OF_KEPT = -2 };

struct pl_operand {
    const float *data;
    int64_t table, buffer, stride, at, period, each;
};

/* count: numbers of a row that come out. size: of a segment or head, or what a product reads.
   order [size]: places, counted from 1: which number of a head, negative with the other sign;
   beyond PL_OTHER it is one of `other`. of_kept: out is a buffer of the rows that are kept. */
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
    const void *panels; /* of a matrix, or a table of float32 where the format is -1 */
    const float *bias;
};

/* A layer's cache, by head and slot at strides in bytes. */
struct pl_layer {
    char *keys, *values;
    int64_t key_head, key_slot, value_head, value_slot;
};

/* Heads of a cache, each with slots of so many bytes; `head` and `slot` are strides in bytes. */
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
};

/* Texts of a pass, one after the other: each has the slots from `start` on, of which the first
   `cached` hold tokens, reads so many pending tokens, the root last, and so many nodes of a tree
   below it. kept: the logits of the root and of the nodes are wanted. */
struct pl_text {
    int64_t start, cached, pending, nodes, kept;
};

/* tokens: of all rows. parents: of all nodes, by their number in the tree; -1 is the root. windows
   [kinds]: how many slots rows see at most, by kinds of layers; 0 for all. */
struct pl_texts {
    int64_t count, kinds;
    const struct pl_text *each;
    const int64_t *tokens, *parents, *windows;
};

/* Where a chain of guesses ends; see `ChainEnd` in chains.py.

   share: a token with less is the last one. path_chance: the chance of what the chain follows. least
   [passes]: after each the chance below which the chain ends. A token's chance, by its share: a line
   for each class of shares, of the row of `rows` for its place: lines [rows, columns] of an offset
   and a slope. borders [columns - 1]: where the other classes begin. Shares count as at least `low`
   and at most `high`, and as that times `trust`, again at most `high`. */
struct pl_chain_end {
    double share, path_chance, trust, low, high;
    const double *least, *borders, *lines;
    const int64_t *rows;
    int64_t columns;
};

/* Whether another pass is wanted after the one at `place`, whose guess has this share; `path_chance` is the
   chance of all before it and becomes that of all with it. NULL: it is. */
int pl_is_wanted(const struct pl_chain_end *end, int64_t place, double share, double *path_chance);

/* Passes one after the other, of which each reads the likeliest token of the one before.

   count: of passes at most. most: tokens that are wanted of each; with 0 there is one pass. numbers:
   scores that count, from the first on; ids [numbers]: tokens that they belong to, NULL where these
   are their places. start: the text's first slot. cached: tokens there. windows [kinds]: how many
   slots rows see at most, by kinds of layers; 0 for all. reads: the tokens of the first pass, with
   room after them. end: NULL for nowhere but at `count`.
   Found: made: passes. tokens, shares [made, most]: see pl_likeliest. seconds [made]: of passes. */
struct pl_chain {
    int64_t count, most, numbers, kinds, start, cached, made;
    const int64_t *ids, *windows;
    const struct pl_chain_end *end;
    int64_t *reads, *tokens;
    float *shares;
    double *seconds;
};

/* Address of an operand for a row; `row` among those of the step. */
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

/* What attention needs besides: records that parts of ranges share, see attend.h, how many parts are
   done, and room for each thread. */
struct pl_sharing {
    int64_t records, counts; /* floats; ints, of which all are 0 in the beginning */
    int64_t room;            /* floats, a multiple of 16 */
};

/* Finds `ranges` [at least rows + 1] for an attention on so many threads, and what room it needs
   besides; how many units it has, or -1 where its sizes make no sense. */
int64_t pl_plan_attention(const struct pl_tier *tier, struct pl_attention *of,
                          struct pl_range *ranges, int threads, struct pl_sharing *needed);

/* Memory for that and so many threads, 0 where it is to be. Freed by `free`; NULL where there is
   none. */
void *pl_share(const struct pl_sharing *needed, int threads);
/* What of it belongs where. */
void pl_use_shared(struct pl_attention *of, const struct pl_sharing *needed, int threads,
                   void *memory);
float *pl_room_of(const struct pl_sharing *needed, void *memory, int me);

#endif
