/* Work in pieces on several threads. */
#ifndef PL_THREADS_H
#define PL_THREADS_H

#include <stdint.h>

/* Work in pieces, of which every thread has a share in one stretch: what it reads lies in one stretch
   as well, so that memory can be asked for it in time. Who is done helps the others. */
enum { PL_SHARES = 8 };
struct pl_shares {
    int64_t count, size, shares; /* pieces, how many are taken at once */
    _Atomic int64_t next[PL_SHARES];
};

/* Pieces from `first` up to `end`, of a share that goes on up to `until`. */
struct pl_taken {
    int64_t first, end, until;
};

/* Pieces for thread `me`, 0 … : of its own share as long as there are any. 0 where none is left. */
int pl_take(struct pl_shares *of, int me, struct pl_taken *taken);

/* The first piece of a thread's own share. */
int64_t pl_first_of(const struct pl_shares *of, int me);

/* For so many threads, `size` pieces at once. */
void pl_share_out(struct pl_shares *of, int64_t count, int64_t size, int threads);

/* What thread `me` does with the pieces that it has taken. */
typedef void pl_piece(void *context, int me, const struct pl_taken *taken);

/* Calls piece until [0, count) is done, `size` at a time, on at most `threads` threads, the caller's
   among them. Returns when all is done. */
void pl_in_shares(pl_piece *piece, void *context, int64_t count, int64_t size, int threads);

/* The same for those who do not care who they are: piece(context, first, end). */
void pl_in_pieces(void (*piece)(void *context, int64_t first, int64_t end), void *context,
                  int64_t count, int64_t size, int threads);

/* Calls part(context) on `threads` threads at once, the caller's among them, or on fewer where there
   are none to be had. Returns when all of them have. */
void pl_together(void (*part)(void *context), void *context, int threads);

/* Lets the processor know that a thread waits for another one, and gives the core away after a
   while; `looks`: how often it has looked. */
enum { PL_PATIENCE = 3000 };
void pl_rest(int looks);

#endif
