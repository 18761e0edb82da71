/* Threads. Where torch runs on GNU's OpenMP, its threads are used: two pools that wait for work by
   spinning take the cores from each other, and what takes a millisecond takes sixty. Elsewhere
   workers of our own wait by sleeping. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "api.h"

struct job {
    void (*piece)(void *, int64_t, int64_t);
    void *context;
    int64_t count, size;
    _Atomic int64_t next;
};

static void take_part(void *given) {
    struct job *job = given;
    for (;;) {
        const int64_t first =
            atomic_fetch_add_explicit(&job->next, job->size, memory_order_relaxed);
        if (first >= job->count) return;
        const int64_t end = first + job->size;
        job->piece(job->context, first, end < job->count ? end : job->count);
    }
}

/* GNU's entry for a parallel region: every thread of a team calls the function once. */
typedef void (*parallel_t)(void (*each)(void *), void *data, unsigned threads, unsigned flags);
static parallel_t openmp;

PL_API void pl_use_openmp(void *gomp_parallel) { openmp = (parallel_t)gomp_parallel; }

/* Our own workers: as many as were ever asked for, one job at a time. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER, state = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static struct job *current;
static int workers, wanted, busy;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

/* A child process has none of its parent's threads. */
static void after_fork(void) {
    pthread_mutex_init(&turn, NULL);
    pthread_mutex_init(&state, NULL);
    pthread_cond_init(&begin, NULL);
    pthread_cond_init(&end, NULL);
    current = NULL;
    workers = wanted = busy = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&state);
    for (;;) {
        while (!wanted) pthread_cond_wait(&begin, &state);
        wanted--, busy++;
        struct job *job = current;
        pthread_mutex_unlock(&state);
        take_part(job);
        pthread_mutex_lock(&state);
        if (!--busy && !wanted) pthread_cond_signal(&end);
    }
    return NULL;
}

static void on_own_workers(struct job *job, int threads) {
    pthread_once(&watched, watch_forks);
    if (pthread_mutex_trylock(&turn)) { /* somebody else's job is running */
        take_part(job);
        return;
    }
    pthread_mutex_lock(&state);
    for (pthread_t thread; workers < threads - 1; workers++) {
        if (pthread_create(&thread, NULL, work, NULL)) break;
        pthread_detach(thread);
    }
    current = job;
    wanted = workers < threads - 1 ? workers : threads - 1;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&state);
    take_part(job);
    pthread_mutex_lock(&state);
    wanted = 0; /* who has not begun by now is not needed */
    while (busy) pthread_cond_wait(&end, &state);
    pthread_mutex_unlock(&state);
    pthread_mutex_unlock(&turn);
}

void pl_in_pieces(void (*piece)(void *, int64_t, int64_t), void *context, int64_t count,
                  int64_t size, int threads) {
    if (threads < 2 || count <= size) {
        if (count > 0) piece(context, 0, count);
        return;
    }
    struct job job = {piece, context, count, size, 0};
    if (openmp) {
        openmp(take_part, &job, (unsigned)threads, 0);
    } else {
        on_own_workers(&job, threads);
    }
}
