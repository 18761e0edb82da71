#define _POSIX_C_SOURCE 200809L
/* Threads for pieces of work.

   Passes of few rows run on workers of our own: a parallel region of OpenMP, as torch has them, ends
   when all of its threads have been there, so on a busy machine everybody waits until the last one
   was given a core. Passes of many rows run on torch's threads: torch uses them itself between our
   products then, and they look for more work for milliseconds, on the cores that ours would need. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "api.h"

struct job {
    void (*piece)(void *, int64_t, int64_t);
    void *context;
    int64_t count, size;
    _Atomic int64_t next;
    _Atomic int seats; /* workers that may still join */
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

/* As many workers as were ever asked for, one job at a time. One that has nothing to do
   looks for work for a while before it sleeps: between the products of a pass there is little time,
   and waking somebody takes long. Who comes late is not waited for. */
enum { LOOKS = 3000 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER, asleep = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static struct job *_Atomic current;
static _Atomic unsigned number; /* of jobs so far */
static _Atomic int busy, sleeping;
static int workers;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

/* A child process has none of its parent's threads. */
static void after_fork(void) {
    pthread_mutex_init(&turn, NULL);
    pthread_mutex_init(&asleep, NULL);
    pthread_cond_init(&wake, NULL);
    current = NULL;
    busy = sleeping = workers = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The number of the next job after `known`. */
static unsigned next_job(unsigned known) {
    for (int look = 0; look < LOOKS; look++, rest())
        if (number != known) return number;
    pthread_mutex_lock(&asleep);
    sleeping++;
    while (number == known) pthread_cond_wait(&wake, &asleep);
    sleeping--;
    pthread_mutex_unlock(&asleep);
    return number;
}

static void *work(void *known) {
    for (unsigned last = (unsigned)(uintptr_t)known;;) {
        last = next_job(last);
        busy++; /* before the look at `current`: who takes that away waits for us */
        struct job *job = current;
        if (job && atomic_fetch_sub(&job->seats, 1) > 0) take_part(job);
        busy--;
    }
    return NULL;
}

static void on_workers(struct job *job, int threads) {
    pthread_once(&watched, watch_forks);
    if (pthread_mutex_trylock(&turn)) { /* somebody else's job is running */
        take_part(job);
        return;
    }
    for (pthread_t thread; workers < threads - 1; workers++) {
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)number)) break;
        pthread_detach(thread);
    }
    current = job;
    number++;
    if (sleeping) {
        pthread_mutex_lock(&asleep);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&asleep);
    }
    take_part(job);
    current = NULL;
    for (int look = 0; busy; look++) {
        if (look < LOOKS) rest();
        /* Somebody lost his core in the middle of a piece: let him have ours. */
        else nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    pthread_mutex_unlock(&turn);
}

/* GNU's entry for a parallel region: every thread of a team calls the function once. */
typedef void (*parallel_t)(void (*each)(void *), void *data, unsigned threads, unsigned flags);
static parallel_t openmp;

PL_API void pl_use_openmp(void *gomp_parallel) { openmp = (parallel_t)gomp_parallel; }

static void in_pieces(void (*piece)(void *, int64_t, int64_t), void *context, int64_t count,
                      int64_t size, int threads, int large) {
    if (threads < 2 || count <= size) {
        if (count > 0) piece(context, 0, count);
        return;
    }
    struct job job = {piece, context, count, size, 0, threads - 1};
    if (large && openmp) openmp(take_part, &job, (unsigned)threads, 0);
    else on_workers(&job, threads);
}

void pl_in_pieces(void (*piece)(void *, int64_t, int64_t), void *context, int64_t count,
                  int64_t size, int threads) {
    in_pieces(piece, context, count, size, threads, 0);
}

void pl_in_large_pieces(void (*piece)(void *, int64_t, int64_t), void *context, int64_t count,
                        int64_t size, int threads) {
    in_pieces(piece, context, count, size, threads, 1);
}
