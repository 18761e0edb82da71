/* Nodes of trees, the likeliest first. */
#ifndef PL_LIKELIEST_FIRST_H
#define PL_LIKELIEST_FIRST_H

#include <stdint.h>

/* Fills order [count] with the places of chances, the largest first; equal ones keep their order. There
   are few, and they come nearly sorted. */
static inline void pl_likeliest_first(const double *chances, int64_t count, int64_t *order) {
    for (int64_t i = 0; i < count; i++) {
        int64_t to = i;
        for (; to > 0 && chances[order[to - 1]] < chances[i]; to--) order[to] = order[to - 1];
        order[to] = i;
    }
}

static inline void pl_sort_numbers(int64_t *numbers, int64_t count) {
    for (int64_t i = 1; i < count; i++) {
        int64_t number = numbers[i], to = i;
        for (; to > 0 && numbers[to - 1] > number; to--) numbers[to] = numbers[to - 1];
        numbers[to] = number;
    }
}

/* How likely a node is if its parent is right, at most 1. */
static inline double pl_claim(const double *weights, const int64_t *parents, int64_t node) {
    double above = parents[node] < 0 ? 1.0 : weights[parents[node]];
    if (!(above > 0)) return 0.0;
    return weights[node] / above < 1.0 ? weights[node] / above : 1.0;
}

#endif
