/* Drafts of trained heads in one call: programs, and the search for what is likeliest between them. */
#ifndef PL_DRAFTS_H
#define PL_DRAFTS_H

#include "program.h"

/* A program over given rows, with memory for as many as it is run with: what rows begin as, and what
   comes out. */
struct pl_part {
    const struct pl_step *steps;
    int64_t count;
    float *arena, *given, *out;
};

/* What heads guess, by rows of `outputs` logits. ranks: likeliest tokens of each row. ids [outputs]:
   tokens that columns stand for, NULL where these are their places. budget: nodes of the tree.
   Found: nodes, with tokens, parents (-1: the root) and chances, as in `Tree`, [budget] each. */
struct pl_guesses {
    int64_t outputs, ranks, budget, nodes;
    const int64_t *ids;
    int64_t *tokens, *parents;
    double *reach;
};

/* Medusa: the heads' own layers on one state [hidden], side by side, then the output head of all. */
struct pl_medusa {
    struct pl_part blocks, head;
    int64_t heads, hidden;
    const float *state;
    struct pl_guesses guesses;
};

/* Chimera, see `ChimeraPrograms`: n-grams' embeddings -> green states; mature and green states ->
   columns of the cache; by level, green states and the last mature one -> logits.

   depth: levels. order: of n-grams. least, beam: nodes that are gone on from are as likely, and as
   many. length: tokens of the text that have columns; fresh: tokens behind these that the target has
   read, behind which comes the root. text [order + fresh]: the tokens up to the root. states: of the
   text from the first token on, at strides. words: the table of embeddings, in blocks or, where the
   format is -1, in float32. layers, tables: of all programs, see pl_pass. */
struct pl_chimera {
    struct pl_part green, read;
    const struct pl_part *levels;
    int64_t depth, order, hidden, beam, length, fresh;
    double least;
    const int64_t *text;
    const float *states;
    int64_t states_stride;
    const void *words;
    int64_t words_format, words_count;
    const struct pl_layer *layers;
    const float *const *tables;
    const int64_t *table_strides;
    struct pl_guesses guesses;
};

#endif
