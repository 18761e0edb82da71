/* Work in pieces on several threads. */
#ifndef PL_THREADS_H
#define PL_THREADS_H

#include <stdint.h>

/* Calls piece(context, first, end) until [0, count) is done, `size` at a time, on at most `threads`
   threads, the caller's among them. Returns when all is done. */
void pl_in_pieces(void (*piece)(void *context, int64_t first, int64_t end), void *context,
                  int64_t count, int64_t size, int threads);

/* The same for work of many rows, which takes milliseconds: on torch's own threads where it is known
   where these are. */
void pl_in_large_pieces(void (*piece)(void *context, int64_t first, int64_t end), void *context,
                        int64_t count, int64_t size, int threads);

/* Rows from which work is large. */
enum { PL_MANY_ROWS = 8 };

#endif
