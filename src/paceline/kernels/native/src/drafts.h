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
   noise [heard, outputs]: of the target's draws at the first `heard` depths, added to the logits of
   guesses there; NULL for none. Found: nodes, with tokens, parents (-1: the root) and chances, as in `Tree`, [budget] each. */
struct pl_guesses {
    int64_t outputs, ranks, budget, nodes;
    int64_t heard;
    const int64_t *ids;
    const float *noise;
    int64_t *tokens, *parents;
    double *path_chances;
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

   depth: levels at most; end: where fewer are wanted, by what of the level before is likely to be
   right, NULL for nowhere. order: of n-grams. least, beam: nodes that are gone on from are as likely,
   and as many. length: tokens of the text that have columns; fresh: tokens after these that the
   target has read, after which comes the root. text [order + fresh]: the tokens up to the root. states: of the
   text from the first token on, at strides. words: the table of embeddings, in blocks or, where the
   format is -1, in float32. layers, tables: of all programs, see pl_pass. grown: how many levels there
   are in the end. */
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

/* EAGLE, see `EaglePrograms`: features and the embeddings after them -> outputs, of the text's rows;
   outputs of the rows before and embeddings -> outputs, of guesses' rows; outputs -> logits.

   width: numbers of a feature. depth, end, least, beam, length, fresh, states, words, grown: as in
   pl_chimera; a row stands at each of the text's places but the first. text [fresh]: the tokens
   of the new rows, up to the root. root [hidden]: the output of the root's row, which is kept where
   nothing is fresh. */
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
