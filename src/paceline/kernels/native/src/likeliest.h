/* The largest numbers of a row and their softmax shares, in the operations of a vec_*.h. */

enum { LOOKED_AT = 64 }; /* numbers that are skipped together if none is large */

INLINE int any_above(const float *from, int64_t count, float limit) {
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= from[i] > limit;
    return found;
}

/* The `most` largest numbers, largest first, then by place; returns how many were found. */
static int64_t find_largest(const float *row, int64_t count, int64_t most, int64_t *places,
                         float *scores) {
    int64_t held = 0;
    for (int64_t i = 0; i < most; i++) places[i] = 0, scores[i] = -INFINITY;
    for (int64_t begin = 0; begin < count; begin += LOOKED_AT) {
        const int64_t some = count - begin < LOOKED_AT ? count - begin : LOOKED_AT;
        if (!any_above(row + begin, some, scores[most - 1])) continue;
        for (int64_t i = begin; i < begin + some; i++) {
            if (!(row[i] > scores[most - 1])) continue;
            int64_t at = held < most ? held++ : most - 1;
            for (; at > 0 && row[i] > scores[at - 1]; at--)
                places[at] = places[at - 1], scores[at] = scores[at - 1];
            places[at] = i, scores[at] = row[i];
        }
    }
    return held;
}

/* The sum of e to the power of every number minus `top`. */
static float total_of(const float *row, int64_t count, float top) {
    float lanes[LANES], sum = 0;
    floats_t sums = no_floats();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sums = plus(sums, power_of_e(minus(load_floats(row + i), same_floats(top))));
    store_floats(lanes, sums);
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    for (; i < count; i++) sum += expf(row[i] - top);
    return sum;
}

static void likeliest(const float *row, int64_t count, int64_t most, int64_t *places,
                      float *shares) {
    const int64_t held = find_largest(row, count, most, places, shares);
    const float top = shares[0], total = total_of(row, count, top);
    /* A number that is infinite leaves no shares. */
    const int64_t sound = top < INFINITY && total > 0 && total < INFINITY ? held : 0;
    for (int64_t i = 0; i < most; i++) shares[i] = i < sound ? expf(shares[i] - top) / total : 0;
}
