/* Drafts of trained heads in one call: programs, with the search for the likeliest guesses between. */
#ifndef PL_DRAFTS_H
#define PL_DRAFTS_H

#include "program.h"
#include "tree.h"

/* A program over given rows, with memory for as many rows as it runs with, their input and their
   output. */
struct pl_part {
    const struct pl_step *steps;
    int64_t count;
    float *arena, *given, *out;
};

/* Guesses of heads, from rows of `outputs` logits. ranks: likeliest tokens of each row. ids [outputs]:
   the tokens of columns, NULL if these equal their places. noise [heard, outputs]: of the target's draws
   at the first `heard` depths, added to the logits of guesses there; NULL for none. found: the resulting
   tree, of at most `budget` nodes. */
struct pl_guesses {
    int64_t outputs, ranks, budget, heard;
    const int64_t *ids;
    const float *noise;
    struct pl_tree found;
};

/* Medusa: the heads' own layers on one state [hidden], side by side, then the shared output head. */
struct pl_medusa {
    struct pl_part blocks, head;
    int64_t heads, hidden;
    const float *state;
    struct pl_guesses guesses;
};

/* Formats of tables that stand row by row. */
enum pl_words { PL_ROWS_F32 = -1, PL_ROWS_F16 = -2, PL_ROWS_BF16 = -3 };

/* Chimera, see `ChimeraPrograms`: n-grams' embeddings -> green states; mature and green states ->
   columns of the cache; by level, green states and the last mature one -> logits.

   depth: levels, at most; end: ends it earlier, by how likely the level before is right; NULL for
   never. order: of n-grams. least, beam: a level continues from at most `beam` nodes, none less likely
   than `least`. length: tokens of the text that have columns; fresh: tokens after these that the target
   has read; then comes the root. text [order + fresh]: the tokens up to the root. states: of the text
   from its first token on, at strides. words: the table of embeddings, in blocks or, if the format is
   of pl_words, row by row. layers, tables: of all programs, see pl_pass. grown: resulting number of levels. */
struct pl_chimera {
    struct pl_part green, read;
    const struct pl_part *levels;
    int64_t depth, order, hidden, beam, length, fresh;
    double least;
    const struct pl_chain_end *end;
    const int64_t *text;
    const float *states;
    int64_t states_stride;
    const void *words;
    int64_t words_format, words_count;
    const struct pl_layer *layers;
    const float *const *tables;
    const int64_t *table_strides;
    struct pl_guesses guesses;
    int64_t grown;
};

/* EAGLE, see `EaglePrograms`: for the text's rows, features and the embeddings after them -> outputs;
   for guesses' rows, outputs of the rows before and embeddings -> outputs; outputs -> logits.

   width: numbers of a feature. depth, end, least, beam, length, fresh, states, words, grown: as in
   pl_chimera; each of the text's places but the first has a row. text [fresh]: the tokens of the new
   rows, up to the root. root [hidden]: the output of the root's row, unchanged if nothing is fresh. */
struct pl_eagle {
    struct pl_part read, grow, head;
    int64_t width, hidden, depth, beam, length, fresh;
    double least;
    const struct pl_chain_end *end;
    const int64_t *text;
    const float *states;
    int64_t states_stride;
    float *root;
    const void *words;
    int64_t words_format, words_count;
    const struct pl_layer *layers;
    const float *const *tables;
    const int64_t *table_strides;
    struct pl_guesses guesses;
    int64_t grown;
};

#endif
