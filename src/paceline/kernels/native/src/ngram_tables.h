/* What followed runs of tokens in a text, and how often: tables of n-grams. ngrams.c counts,
   ngram_drafts.c reads.

   A run is identified by a hash whose low bits are its shard. Two runs with the same hash share their
   followers, which costs no more than a wrong guess; in different shards, they would break the lists. */
#ifndef PL_NGRAM_TABLES_H
#define PL_NGRAM_TABLES_H

#include "tree.h"

enum { NONE = -1, SHARDS = 32, LONGEST_RUN = 64, FIRST_ROOM = 64 };

struct run {
    uint64_t key;
    int32_t next;         /* in its bucket, or in the free list */
    int32_t newer, older; /* counted after and before it in its shard */
    int32_t first;        /* the most frequent follower; among equals, the latest */
    int32_t total, size;  /* how often anything followed; number of followers */
};

struct follower {
    int32_t token, seen, next;
};

/* Runs of one length. */
struct table {
    struct run *runs;
    struct follower *followers;
    int32_t *buckets;
    int64_t run_room, follower_room, bucket_count; /* bucket_count is a power of two */
    int64_t run_end, follower_end, run_count;
    int32_t free_run, free_follower;
    int32_t newest[SHARDS], oldest[SHARDS];
    int64_t sizes[SHARDS];                         /* n-grams */
};

struct pl_ngrams {
    int64_t shortest, longest, width, room;
    struct table tables[]; /* [longest - shortest + 1] */
};

/* The question: how does the text with the last tokens `tail` continue? */
struct pl_ngram_draft {
    const struct pl_ngrams *own;    /* of the text itself */
    const struct pl_ngrams *others; /* used where `own` knows nothing; NULL for none */
    const int32_t *tail;            /* [length] */
    int64_t length;
    int64_t budget;                 /* most nodes */
    int64_t depth;                  /* of the deepest node */
    double doubt;                   /* lowers a token's chance, see ngram_drafts.c */

    struct pl_tree found; /* the answer, likeliest first; room for `budget` nodes */
};

static inline uint64_t shard_of(int32_t last) { return (uint32_t)last % SHARDS; }

/* The key of a run with one more `token` before it; that of the empty one is the shard of the last. */
static inline uint64_t mixed(uint64_t key, int32_t token) {
    uint64_t longer = (key + (uint32_t)token + 1) * UINT64_C(0x9E3779B97F4A7C15);
    longer ^= longer >> 29;
    return longer - longer % SHARDS + key % SHARDS;
}

static inline int64_t bucket_of(const struct table *in, uint64_t key) {
    return (int64_t)((key * UINT64_C(0xD6E8FEB86659FD93)) >> 32) & (in->bucket_count - 1);
}

static inline int32_t find(const struct table *in, uint64_t key) {
    if (!in->run_count) return NONE;
    int32_t run = in->buckets[bucket_of(in, key)];
    while (run != NONE && in->runs[run].key != key) run = in->runs[run].next;
    return run;
}

#endif
