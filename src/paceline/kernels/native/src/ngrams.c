/* Counts n-grams; drafters/ngrams.py does the same and says what is kept and forgotten. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "ngram_tables.h"

/* Doubles memory; `size` bytes each. */
static int grown(void **memory, int64_t *room, int64_t size) {
    int64_t more = *room ? 2 * *room : FIRST_ROOM;
    void *larger = realloc(*memory, (size_t)(more * size));
    if (!larger) return PL_NO_MEMORY;
    *memory = larger;
    *room = more;
    return PL_OK;
}

static int more_buckets(struct table *in) {
    int64_t count = in->bucket_count ? 2 * in->bucket_count : FIRST_ROOM;
    int32_t *buckets = malloc((size_t)count * sizeof *buckets);
    if (!buckets) return PL_NO_MEMORY;
    free(in->buckets);
    in->buckets = buckets;
    in->bucket_count = count;
    for (int64_t i = 0; i < count; i++) buckets[i] = NONE;
    for (int32_t shard = 0; shard < SHARDS; shard++)
        for (int32_t i = in->newest[shard]; i != NONE; i = in->runs[i].older) {
            int32_t *bucket = &buckets[bucket_of(in, in->runs[i].key)];
            in->runs[i].next = *bucket;
            *bucket = i;
        }
    return PL_OK;
}

/* Room for one more run and one more follower. */
static int reserve(struct table *in) {
    if (in->free_run == NONE && in->run_end == in->run_room &&
        grown((void **)&in->runs, &in->run_room, sizeof *in->runs))
        return PL_NO_MEMORY;
    if (in->free_follower == NONE && in->follower_end == in->follower_room &&
        grown((void **)&in->followers, &in->follower_room, sizeof *in->followers))
        return PL_NO_MEMORY;
    return in->run_count < in->bucket_count ? PL_OK : more_buckets(in);
}

static int32_t new_run(struct table *in, uint64_t key) {
    int32_t at = in->free_run;
    if (at == NONE) at = (int32_t)in->run_end++;
    else in->free_run = in->runs[at].next;
    int32_t *bucket = &in->buckets[bucket_of(in, key)];
    in->runs[at] = (struct run){.key = key, .next = *bucket, .first = NONE};
    *bucket = at;
    in->run_count++;
    return at;
}

static int32_t new_follower(struct table *in, int32_t token) {
    int32_t at = in->free_follower;
    if (at == NONE) at = (int32_t)in->follower_end++;
    else in->free_follower = in->followers[at].next;
    in->followers[at] = (struct follower){.token = token, .seen = 1, .next = NONE};
    return at;
}

static void leave_shard(struct table *in, int32_t shard, int32_t run) {
    struct run *of = &in->runs[run];
    if (of->newer == NONE) in->newest[shard] = of->older;
    else in->runs[of->newer].older = of->older;
    if (of->older == NONE) in->oldest[shard] = of->newer;
    else in->runs[of->older].newer = of->newer;
}

static void join_shard(struct table *in, int32_t shard, int32_t run) {
    int32_t before = in->newest[shard];
    in->runs[run].newer = NONE;
    in->runs[run].older = before;
    if (before == NONE) in->oldest[shard] = run;
    else in->runs[before].newer = run;
    in->newest[shard] = run;
}

static void forget_run(struct table *in, int32_t shard, int32_t run) {
    struct run *of = &in->runs[run];
    leave_shard(in, shard, run);
    in->sizes[shard] -= of->size;
    for (int32_t i = of->first, next; i != NONE; i = next) {
        next = in->followers[i].next;
        in->followers[i].next = in->free_follower;
        in->free_follower = i;
    }
    int32_t *at = &in->buckets[bucket_of(in, of->key)];
    while (*at != run) at = &in->runs[*at].next;
    *at = of->next;
    of->next = in->free_run;
    in->free_run = run;
    in->run_count--;
}

/* Keeps a shard's latest runs, with at most half of the n-grams that it has room for. */
static void forget(struct table *in, int32_t shard, int64_t room) {
    int64_t size = 0;
    int32_t run = in->newest[shard];
    while (run != NONE && (size += in->runs[run].size) <= room / 2) run = in->runs[run].older;
    if (run == NONE) return;
    int32_t last = in->runs[run].newer;
    while (in->oldest[shard] != last) forget_run(in, shard, in->oldest[shard]);
}

static int count_one(struct table *in, uint64_t key, int32_t token, int64_t room) {
    const int32_t shard = (int32_t)(key % SHARDS);
    if (reserve(in)) return PL_NO_MEMORY;
    int32_t place = find(in, key);
    if (place == NONE) place = new_run(in, key);
    else leave_shard(in, shard, place);
    join_shard(in, shard, place);
    struct run *run = &in->runs[place];
    run->total++;
    int32_t *at = &run->first, follower;
    while (*at != NONE && in->followers[*at].token != token) at = &in->followers[*at].next;
    if (*at != NONE) {
        follower = *at;
        *at = in->followers[follower].next;
        in->followers[follower].seen++;
    } else {
        follower = new_follower(in, token);
        run->size++;
        in->sizes[shard]++;
    }
    int32_t seen = in->followers[follower].seen;
    at = &run->first;
    while (*at != NONE && in->followers[*at].seen > seen) at = &in->followers[*at].next;
    in->followers[follower].next = *at;
    *at = follower;
    if (in->sizes[shard] > room) forget(in, shard, room);
    return PL_OK;
}

PL_API struct pl_ngrams *pl_ngrams_new(int64_t shortest, int64_t longest, int64_t width,
                                       int64_t most) {
    if (shortest < 1 || longest < shortest || longest > LONGEST_RUN || width < 1) return NULL;
    int64_t count = longest - shortest + 1;
    struct pl_ngrams *made = calloc(1, sizeof *made + (size_t)count * sizeof *made->tables);
    if (!made) return NULL;
    made->shortest = shortest;
    made->longest = longest;
    made->width = width;
    made->room = most / SHARDS;
    for (int64_t i = 0; i < count; i++) {
        struct table *each = &made->tables[i];
        each->free_run = each->free_follower = NONE;
        memset(each->newest, 0xff, sizeof each->newest); /* NONE */
        memset(each->oldest, 0xff, sizeof each->oldest);
    }
    return made;
}

PL_API void pl_ngrams_free(struct pl_ngrams *of) {
    if (!of) return;
    for (int64_t i = 0; i <= of->longest - of->shortest; i++) {
        free(of->tables[i].runs);
        free(of->tables[i].followers);
        free(of->tables[i].buckets);
    }
    free(of);
}

PL_API int64_t pl_ngrams_size(const struct pl_ngrams *of, int64_t length) {
    int64_t size = 0;
    if (length < of->shortest || length > of->longest) return 0;
    for (int shard = 0; shard < SHARDS; shard++)
        size += of->tables[length - of->shortest].sizes[shard];
    return size;
}

PL_API int pl_ngrams_count(struct pl_ngrams *in, const int32_t *tokens, int64_t known,
                           int64_t count) {
    for (int64_t place = known > 0 ? known : 1; place < known + count; place++) {
        uint64_t key = shard_of(tokens[place - 1]);
        for (int64_t length = 1; length <= in->longest && length <= place; length++) {
            key = mixed(key, tokens[place - length]);
            if (length < in->shortest) continue;
            struct table *of = &in->tables[length - in->shortest];
            if (count_one(of, key, tokens[place], in->room)) return PL_NO_MEMORY;
        }
    }
    return PL_OK;
}
