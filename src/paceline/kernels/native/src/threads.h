/* Work in pieces on several threads. */
#ifndef PL_THREADS_H
#define PL_THREADS_H

#include <stdint.h>

/* Calls piece(context, first, end) until [0, count) is done, `size` at a time, on at most `threads`
   threads, the caller's among them. Returns when all is done. */
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
