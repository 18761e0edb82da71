/* Work in pieces on several threads. */
#ifndef PL_THREADS_H
#define PL_THREADS_H

#include <stdint.h>

/* Work in pieces. A thread's share is contiguous, and so is what it reads, which can therefore be
   fetched in time. A thread that is done helps the others. */
enum { PL_SHARES = 8 };
struct pl_shares {
    int64_t count, size, shares; /* pieces, pieces taken at once, shares */
    _Atomic int64_t next[PL_SHARES];
};

/* Pieces [first, end) of a share that ends at `until`. */
struct pl_taken {
    int64_t first, end, until;
};

/* Takes pieces for thread `me`, counted from 0: from its own share while any are left. Returns 0 if
   there are none. */
int pl_take(struct pl_shares *of, int me, struct pl_taken *taken);

/* The first piece of a thread's own share. */
int64_t pl_first_of(const struct pl_shares *of, int me);

/* Divides `count` pieces among `threads` threads, `size` to take at once. */
void pl_share_out(struct pl_shares *of, int64_t count, int64_t size, int threads);

/* What thread `me` does with the pieces it has taken. */
typedef void pl_piece(void *context, int me, const struct pl_taken *taken);

/* Calls `piece` for [0, count), `size` at a time, on at most `threads` threads, including the caller's.
   Returns when all is done. */
void pl_in_shares(pl_piece *piece, void *context, int64_t count, int64_t size, int threads);

/* The same for work that does not depend on the thread: piece(context, first, end). */
void pl_in_pieces(void (*piece)(void *context, int64_t first, int64_t end), void *context,
                  int64_t count, int64_t size, int threads);

/* Calls part(context) on `threads` threads at once, including the caller's, or on fewer if no more are
   available. Returns when all calls have. */
void pl_together(void (*part)(void *context), void *context, int threads);

/* Tells the processor that a thread waits for another one, and yields the core after a while. looks:
   how often it has looked. */
enum { PL_PATIENCE = 3000 };
void pl_rest(int looks);

#endif
