#define _POSIX_C_SOURCE 200809L
/* Threads for pieces of work.

   They are torch's own if their address is known: after a parallel operator, torch's threads spin for
   milliseconds, waiting for more work, on cores that other threads would need. Otherwise they are our
   own workers. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "api.h"

struct job {
    void (*part)(void *);
    void *context;
    _Atomic int seats; /* workers that may still join */
};

/* As many workers as were ever asked for, one job at a time. An idle worker spins for a while before it
   sleeps: the products of a pass follow one another closely, and waking a thread takes long. A job does
   not wait for workers that come late. */
enum { LOOKS = PL_PATIENCE };

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

void pl_rest(int looks) {
    if (looks < LOOKS) rest();
    /* Some thread lost its core in the middle of a piece: give it ours. */
    else nanosleep(&(struct timespec){0, 20000}, NULL);
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
        busy++; /* before `current` is read: whoever resets that waits for us */
        struct job *job = current;
        if (job && atomic_fetch_sub(&job->seats, 1) > 0) job->part(job->context);
        busy--;
    }
    return NULL;
}

static void on_workers(struct job *job, int threads) {
    pthread_once(&watched, watch_forks);
    if (pthread_mutex_trylock(&turn)) { /* another job is running */
        job->part(job->context);
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
    job->part(job->context);
    current = NULL;
    for (int look = 0; busy; look++) pl_rest(look);
    pthread_mutex_unlock(&turn);
}

/* GNU's entry for a parallel region: each thread of a team calls the function once. */
typedef void (*parallel_t)(void (*each)(void *), void *data, unsigned threads, unsigned flags);
static parallel_t openmp;
static int (*openmp_threads)(void);

PL_API void pl_use_openmp(void *gomp_parallel, void *omp_get_num_threads) {
    openmp = (parallel_t)gomp_parallel;
    openmp_threads = (int (*)(void))omp_get_num_threads;
}

/* An OpenMP team. Its threads may share one core, and OpenMP spins for the others without ever yielding
   it: so a thread that is done rests until all are. */
struct team {
    void (*part)(void *);
    void *context;
    int threads; /* that were asked for */
    _Atomic int done;
};

static void in_team(void *given) {
    struct team *team = given;
    team->part(team->context);
    team->done++;
    const int threads = openmp_threads ? openmp_threads() : team->threads;
    for (int look = 0; team->done < threads; look++) pl_rest(look);
}

void pl_together(void (*part)(void *), void *context, int threads) {
    struct team team = {part, context, threads, 0};
    struct job job = {part, context, threads - 1};
    if (threads < 2) part(context);
    else if (openmp) openmp(in_team, &team, (unsigned)threads, 0);
    else on_workers(&job, threads);
}

void pl_share_out(struct pl_shares *of, int64_t count, int64_t size, int threads) {
    *of = (struct pl_shares){count, size, threads < PL_SHARES ? threads : PL_SHARES, {0}};
    if (of->shares < 1 || count <= size) of->shares = 1;
}

/* Where a share begins: at a multiple of `size`. */
static int64_t begin_of(const struct pl_shares *of, int64_t share) {
    const int64_t times = (of->count + of->size - 1) / of->size;
    const int64_t begin = times * share / of->shares * of->size;
    return begin < of->count ? begin : of->count;
}

int64_t pl_first_of(const struct pl_shares *of, int me) { return begin_of(of, me % of->shares); }

int pl_take(struct pl_shares *of, int me, struct pl_taken *taken) {
    for (int64_t turn = 0; turn < of->shares; turn++) {
        const int64_t share = (me + turn) % of->shares;
        const int64_t begin = begin_of(of, share), until = begin_of(of, share + 1);
        _Atomic int64_t *next = of->next + share;
        if (atomic_load_explicit(next, memory_order_relaxed) >= until - begin) continue;
        const int64_t first = begin + atomic_fetch_add_explicit(next, of->size, memory_order_relaxed);
        if (first >= until) continue;
        const int64_t left = until - first;
        *taken = (struct pl_taken){first, first + (left < of->size ? left : of->size), until};
        return 1;
    }
    return 0;
}

struct sharing {
    pl_piece *piece;
    void *context;
    struct pl_shares shares;
    _Atomic int here;
};

static void take_pieces(void *given) {
    struct sharing *of = given;
    const int me = of->here++;
    for (struct pl_taken taken; pl_take(&of->shares, me, &taken);)
        of->piece(of->context, me, &taken);
}

void pl_in_shares(pl_piece *piece, void *context, int64_t count, int64_t size, int threads) {
    if (count < 1) return;
    struct sharing sharing = {piece, context, {0}, 0};
    pl_share_out(&sharing.shares, count, size, threads);
    pl_together(take_pieces, &sharing, sharing.shares.shares > 1 ? threads : 1);
}

struct stretches {
    void (*stretch)(void *, int64_t, int64_t);
    void *context;
};

static void take_stretch(void *given, int me, const struct pl_taken *taken) {
    const struct stretches *of = given;
    (void)me;
    of->stretch(of->context, taken->first, taken->end);
}

void pl_in_pieces(void (*piece)(void *, int64_t, int64_t), void *context, int64_t count,
                  int64_t size, int threads) {
    struct stretches stretches = {piece, context};
    pl_in_shares(take_stretch, &stretches, count, threads < 2 ? count : size, threads);
}
