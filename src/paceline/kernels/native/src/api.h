/* What the library exports, for calls.py. Sizes are in numbers, not bytes. */
#ifndef PL_API_H
#define PL_API_H

#include <stdint.h>

#if defined(_WIN32)
#define PL_API __declspec(dllexport)
#else
#define PL_API __attribute__((visibility("default")))
#endif

enum { PL_OK = 0, PL_NO_MEMORY = 1, PL_BAD_ARGUMENT = 2 };

/* A hash of the sources that the library was built from, see build.py. */
PL_API const char *pl_sources(void);

/* Names of the tiers that this processor runs, the best first, separated by commas. */
PL_API const char *pl_tiers(void);
/* Uses one of them; PL_BAD_ARGUMENT for any other. The best is the default. */
PL_API int pl_use_tier(const char *name);
PL_API const char *pl_tier(void);
/* 1 if this processor and its operating system run code of this tier, else 0. */
PL_API int pl_cpu_has(const char *tier);

/* Sets the addresses of these functions in torch's OpenMP; NULL for none. */
PL_API void pl_use_openmp(void *gomp_parallel, void *omp_get_num_threads);

/* Bytes of a matrix's panels; 0 for sizes or formats that do not exist. */
PL_API int64_t pl_packed_bytes(int format, int64_t outputs, int64_t inputs);

/* Blocks of a GGUF file [outputs of the file, ...] -> panels. rows [outputs]: the row of the file for
   each output; NULL for all in order. */
PL_API int pl_pack(int format, const uint8_t *blocks, const int64_t *rows, int64_t outputs,
                   int64_t inputs, uint8_t *panels, int threads);

/* Rows of a packed matrix as numbers: out [count, inputs]; ids must be below `outputs`. */
PL_API int pl_values(int format, const uint8_t *panels, int64_t outputs, int64_t inputs,
                     const int64_t *ids, int64_t count, float *out, int threads);

/* Blocks of a GGUF file as numbers: out [outputs, inputs]. */
PL_API int pl_dequantise(int format, const uint8_t *blocks, int64_t outputs, int64_t inputs,
                         float *out, int threads);

/* out [count, stride] = rows [count, inputs] x matrix + bias [outputs] (NULL for none). */
PL_API int pl_product(int format, const uint8_t *panels, int64_t outputs, int64_t inputs,
                      const float *rows, int64_t count, const float *bias, float *out,
                      int64_t stride, int threads);

struct pl_attention;
/* See tier.h; fields that the library fills in are not read. */
PL_API int pl_attend(const struct pl_attention *of, int threads);

/* Places and softmax shares, both [count, most], of the `most` largest scores of each row [count,
   numbers], largest first, then by place. If a row has fewer usable scores (-inf, NaN), the last are
   place 0 with share 0. All shares of a row with +inf or NaN are 0. */
PL_API int pl_likeliest(const float *rows, int64_t count, int64_t numbers, int64_t most,
                        int64_t *places, float *shares);

struct pl_store;
/* In each store, copies slots from[i] to to[i], in order. */
PL_API int pl_move(const struct pl_store *stores, int64_t count, const int64_t *from,
                   const int64_t *to, int64_t moves);

struct pl_step;
struct pl_pass;
/* One pass; see program.h. */
PL_API int pl_run(const struct pl_step *steps, int64_t count, const struct pl_pass *pass,
                  int threads);

struct pl_texts;
/* One pass over texts; see program.h. The texts describe the rows of `given`, except the counts of all
   rows and of kept rows. */
PL_API int pl_run_texts(const struct pl_step *steps, int64_t count, const struct pl_pass *given,
                        const struct pl_texts *texts, int threads);

struct pl_chain;
/* Passes that each read the token of the one before; see program.h. The chain describes the rows of
   `first`. */
PL_API int pl_run_chain(const struct pl_step *steps, int64_t count, const struct pl_pass *first,
                        struct pl_chain *chain, int threads);

struct pl_medusa;
struct pl_chimera;
struct pl_eagle;
/* Drafts of trained heads; see drafts.h. */
PL_API int pl_draft_medusa(struct pl_medusa *of, int threads);
PL_API int pl_draft_chimera(struct pl_chimera *of, int threads);
PL_API int pl_draft_eagle(struct pl_eagle *of, int threads);

struct pl_suffixes;
/* What followed the end of a text elsewhere; see suffixes.h. */
PL_API int pl_look_up(struct pl_suffixes *in);
/* The same for the longest match and for shorter ones that occur in more places, `lengths` in total:
   the first tree with the largest `total`; no tree if none exceeds the initial `total`. */
PL_API int pl_look_up_lengths(struct pl_suffixes *in, int64_t lengths);
/* Appends tokens to the text; there must be room for them and their places. */
PL_API int pl_add_tokens(struct pl_suffixes *to, const int32_t *tokens, int64_t count);

struct pl_ngrams;
struct pl_ngram_draft;
/* Counts what follows runs of `shortest` to `longest` tokens (1 to 64). Guesses are the `width` best
   followers of a run; about `most` n-grams are kept per length. NULL without memory, or for impossible
   sizes. */
PL_API struct pl_ngrams *pl_ngrams_new(int64_t shortest, int64_t longest, int64_t width,
                                       int64_t most);
PL_API void pl_ngrams_free(struct pl_ngrams *of);
/* The number of known n-grams for runs of this length. */
PL_API int64_t pl_ngrams_size(const struct pl_ngrams *of, int64_t length);
/* Counts the n-grams that end in the last `count` of tokens [known + count]. */
PL_API int pl_ngrams_count(struct pl_ngrams *in, const int32_t *tokens, int64_t known,
                           int64_t count);
/* The likeliest continuations; see ngram_tables.h. */
PL_API int pl_ngrams_draft(struct pl_ngram_draft *in);

struct pl_union;
/* Adds one more tree; see unions.h. */
PL_API int pl_unite(struct pl_union *in);
/* Keeps only the likeliest nodes; claims are lost. */
PL_API void pl_cut_union(struct pl_union *in, int64_t most);
/* The likeliest childless nodes of these sources, in `places`; returns how many. */
PL_API int64_t pl_union_ends(struct pl_union *in, int64_t sources, int64_t most);

struct pl_kinds;
struct pl_calibration;
struct pl_sizing;
/* Counts of guesses, over about the last `memory` per kind; NULL without memory. */
PL_API struct pl_calibration *pl_calibration_new(const struct pl_kinds *kinds, double memory);
/* Initial counts for another text, each worth at most `evidence` guesses. */
PL_API struct pl_calibration *pl_calibration_heir(const struct pl_calibration *of, double memory,
                                                  double evidence);
PL_API void pl_calibration_free(struct pl_calibration *of);
/* How likely nodes are, and which are worth their rows; see calibration.h. */
PL_API int pl_size_tree(struct pl_sizing *in);
/* Judges the trees that `own` watches by these tokens of the text; counts in `own` and in `all`. */
PL_API int pl_calibration_observe(struct pl_calibration *own, struct pl_calibration *all,
                               const int64_t *tokens, int64_t count);

#endif
