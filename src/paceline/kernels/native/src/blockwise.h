/* Attention over the blocks of a text, in order, and its result; see attend.h. */

static inline int64_t record_width(const struct pl_attention *of) {
    return (of->value_size + CHUNK - 1) / CHUNK * CHUNK;
}

/* Joins the record of one more block to that of the blocks before. */
static void join_block(int64_t width, float *all, const float *one) {
    const float known = all[width], found = one[width], top = found > known ? found : known;
    const floats_t kept = power_of_e(same_floats(known - top));
    const floats_t added = power_of_e(same_floats(found - top));
    for (int64_t d = 0; d < width; d += LANES)
        store_floats(all + d, times_plus(load_floats(one + d), added,
                                         times(load_floats(all + d), kept)));
    all[width] = top;
    all[width + 1] =
        fmaf(one[width + 1], first_lane(added), all[width + 1] * first_lane(kept));
}

static void finish(const struct pl_attention *of, const struct pair *pair, const float *all) {
    float *to = of->out + (pair->row * of->heads + pair->head) * of->value_size;
    const float per = 1.0f / all[record_width(of) + 1];
    for (int64_t d = 0; d < of->value_size; d++) to[d] = all[d] * per;
}

/* The pairs of a range for one key head. A path that continues right after the stretch joins it. */
static void find_pairs(struct part *part, const struct pl_range *range, int64_t head) {
    const struct pl_attention *of = part->of;
    const int64_t together = of->heads / of->key_heads;
    part->first = of->first[range->row], part->tail = INT64_MAX;
    for (int64_t row = range->row; row < range[1].row; row++) {
        int64_t stretch = of->count[row], begin = of->extra_begin[row];
        const int64_t end = of->extra_begin[row + 1], seen = stretch + end - begin;
        while (begin < end && of->extra[begin] == of->first[row] + stretch) stretch++, begin++;
        if (begin < end) {
            const int64_t from = of->extra[begin], to = (int64_t)of->extra[end - 1] + 1;
            part->tail = from < part->tail ? from : part->tail;
            part->tail_end = to > part->tail_end ? to : part->tail_end;
        }
        for (int64_t h = 0; h < together; h++)
            part->pairs[part->count++] =
                (struct pair){row,  head * together + h,     of->first[row] - part->first, stretch,
                              seen, of->extra + begin};
    }
}

/* All blocks of a range, in order. */
static void take_all(struct part *part, int64_t blocks, float *records) {
    const int64_t width = record_width(part->of), size = width + CHUNK;
    float *to[PAIRS];
    for (int64_t p = 0; p < part->count; p++) to[p] = records + p * size;
    take_block(part, 0, to, width);
    for (int64_t p = 0; p < part->count; p++) to[p] += PAIRS * size;
    for (int64_t block = 1; block < blocks; block++) {
        take_block(part, block, to, width);
        for (int64_t p = 0; p < part->count; p++)
            if (among(part->pairs[p].seen, block)) join_block(width, records + p * size, to[p]);
    }
    for (int64_t p = 0; p < part->count; p++)
        finish(part->of, part->pairs + p, records + p * size);
}

/* Some blocks of a range that is cut into parts. The part that finishes last joins all of them. */
static void take_some(struct part *part, const struct pl_range *range, int64_t head,
                      int64_t first, int64_t end) {
    const struct pl_attention *of = part->of;
    const int64_t width = record_width(of), size = width + CHUNK;
    const int64_t rows = range[1].row - range->row, together = part->count / rows;
    float *own = of->partial + range->partial + head * rows * together * range->blocks * size;
    float *to[PAIRS];
    for (int64_t block = first; block < end; block++) {
        for (int64_t p = 0; p < part->count; p++)
            to[p] = own + (p * range->blocks + block) * size;
        take_block(part, block, to, width);
    }
    _Atomic int *done = of->done + (range - of->ranges) * of->key_heads + head;
    if (atomic_fetch_add(done, 1) + 1 < range->parts) return;
    atomic_store(done, 0); /* as the next attention expects */
    for (int64_t p = 0; p < part->count; p++) {
        float *all = own + p * range->blocks * size;
        for (int64_t block = 1; among(part->pairs[p].seen, block); block++)
            join_block(width, all, all + block * size);
        finish(of, part->pairs + p, all);
    }
}

/* A thread's memory, in floats: a tile of keys, scores, scores of single slots, records. */
static int64_t keys_room(const struct pl_attention *of) {
    return (TILE + CHUNK) * ((of->size + CHUNK - 1) / CHUNK * CHUNK);
}

static int64_t attend_room(const struct pl_attention *of) {
    return keys_room(of) + PAIRS * (STRIDE + tail_stride(of) + 2 * (record_width(of) + CHUNK));
}

/* Units [first, end): parts of ranges x key heads. */
static void attend(const struct pl_attention *of, int64_t first, int64_t end, float *room) {
    const int64_t keys = keys_room(of), tails = PAIRS * tail_stride(of);
    const struct pl_range *range = of->ranges;
    for (int64_t unit = first; unit < end; unit++) {
        while (unit >= range[1].unit) range++;
        const int64_t head = (unit - range->unit) % of->key_heads;
        const int64_t number = (unit - range->unit) / of->key_heads;
        struct part part = {.of = of, .room = room, .at = room + keys};
        part.of_tail = part.at + PAIRS * STRIDE;
        part.keys = (const char *)of->keys + head * of->key_head;
        part.values = (const char *)of->values + head * of->value_head;
        find_pairs(&part, range, head);
        part.late = part.count <= ROWS_OF_SCORES;
        const int64_t begin = number * of->part, left = range->blocks - begin;
        if (range->parts == 1) take_all(&part, range->blocks, part.of_tail + tails);
        else take_some(&part, range, head, begin, begin + (left < of->part ? left : of->part));
    }
}
