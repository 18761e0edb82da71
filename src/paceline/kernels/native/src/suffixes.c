/* What followed the last tokens of a text elsewhere; suffixes.h says how places are sorted. Orders may
   come from files: a place outside the text counts as one before all others. */
#include "suffixes.h"

#include <string.h>

#include "api.h"

struct group {
    int64_t begin, end, depth, parent;
    double weight;
    int32_t token, newest;
};

static int32_t before(const struct pl_suffixes *in, int64_t place, int64_t distance) {
    int64_t at = place - distance;
    return at < 0 || at >= in->count ? -1 : in->tokens[at];
}

/* The token `depth` tokens after a place; below 0 if there is none. */
static int32_t after(const struct pl_suffixes *in, int64_t place, int64_t depth) {
    return before(in, place + depth, 0);
}

/* How many of the tail's last `length` tokens precede a place; *less: if not all do, whether the place
   comes before the tail. */
static int64_t compare(const struct pl_suffixes *in, int64_t place, int64_t length, int *less) {
    for (int64_t i = 1; i <= length; i++) {
        int32_t here = before(in, place, i), there = in->tail[in->length - i];
        if (here != there) {
            *less = here < there;
            return i - 1;
        }
    }
    *less = 0;
    return length;
}

static int64_t common(const struct pl_suffixes *in, int64_t at, int64_t length) {
    int less;
    return at < 0 || at >= in->size ? 0 : compare(in, in->order[at], length, &less);
}

/* The first place that does not come before the tail. */
static int64_t lower_bound(const struct pl_suffixes *in, int64_t length) {
    int64_t low = 0, high = in->size;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int less;
        compare(in, in->order[middle], length, &less);
        if (less) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The last of the places with `length` common tokens from `at`, one of them, in direction `way` (1 or
   -1); usually not far. */
static int64_t reach(const struct pl_suffixes *in, int64_t at, int64_t length, int64_t way) {
    int64_t inside = 0, outside = 1;
    while (common(in, at + way * outside, length) == length) {
        inside = outside;
        outside *= 2;
    }
    while (outside - inside > 1) {
        int64_t middle = inside + (outside - inside) / 2;
        if (common(in, at + way * middle, length) == length) inside = middle;
        else outside = middle;
    }
    return at + way * inside;
}

static int64_t longer(int64_t one, int64_t other) { return one > other ? one : other; }

static void find(struct pl_suffixes *in) {
    int64_t length = in->length < in->most ? in->length : in->most;
    int64_t at = lower_bound(in, length);
    int64_t left = common(in, at - 1, length), right = common(in, at, length);
    in->matched = longer(left, right);
    in->begin = in->end = in->shorter = 0;
    if (in->matched < in->least) {
        in->matched = 0;
        return;
    }
    int64_t one = right == in->matched ? at : at - 1;
    in->begin = reach(in, one, in->matched, -1);
    in->end = reach(in, one, in->matched, 1) + 1;
    in->shorter = longer(common(in, in->begin - 1, length), common(in, in->end, length));
}

/* Sorts places by the token `depth` after them, then by place, without those that have none. Returns
   how many are left. */
static int64_t sort_by_follower(const struct pl_suffixes *in, int32_t *places, int64_t count,
                                int64_t depth) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t place = places[i], token = after(in, place, depth);
        if (token < 0) continue;
        int64_t to = kept++;
        for (; to > 0; to--) {
            int32_t other = after(in, places[to - 1], depth);
            if (other < token || (other == token && places[to - 1] < place)) break;
            places[to] = places[to - 1];
        }
        places[to] = place;
    }
    return kept;
}

/* Adds what follows the places of `of`, which all pass through `node`, to the frontier. A token that
   followed a run of matching tokens `seen` times of `total` has the chance
   seen / total * seen / (seen + doubt / run^2). Returns the number of groups in the frontier. */
static int64_t expand(const struct pl_suffixes *in, int32_t *places, struct group of, int64_t node,
                      struct group *frontier, int64_t waiting) {
    int64_t total = sort_by_follower(in, places + of.begin, of.end - of.begin, of.depth);
    double run = (double)(in->matched + of.depth), known = (double)total;
    for (int64_t i = of.begin, next; i < of.begin + total; i = next) {
        int32_t token = after(in, places[i], of.depth);
        for (next = i + 1; next < of.begin + total; next++)
            if (after(in, places[next], of.depth) != token) break;
        double seen = (double)(next - i);
        double share = seen / known * seen / (seen + in->doubt / (run * run));
        frontier[waiting++] = (struct group){i, next, of.depth + 1, node, of.weight * share,
                                             token, places[next - 1]};
    }
    return waiting;
}

/* The likeliest group; among equals, the one with the newest place. */
static int64_t best_of(const struct group *frontier, int64_t waiting) {
    int64_t best = 0;
    for (int64_t i = 1; i < waiting; i++)
        if (frontier[i].weight > frontier[best].weight ||
            (frontier[i].weight == frontier[best].weight &&
             frontier[i].newest > frontier[best].newest))
            best = i;
    return best;
}

static void grow(struct pl_suffixes *in) {
    struct pl_tree *tree = &in->found;
    int32_t places[PL_MOST_HITS];
    /* Groups in the frontier share no place. */
    struct group frontier[PL_MOST_HITS];
    int64_t found = in->end - in->begin, count = found < in->hits ? found : in->hits;
    for (int64_t i = 0; i < count; i++) places[i] = in->order[in->begin + i * found / count];
    struct group root = {0, count, 0, -1, 1.0, 0, 0};
    int64_t waiting = expand(in, places, root, -1, frontier, 0), nodes = 0, most = in->budget;
    if (in->per_match && in->per_match * in->matched < most) most = in->per_match * in->matched;
    while (waiting && nodes < most) {
        int64_t best = best_of(frontier, waiting), siblings = 0;
        struct group taken = frontier[best];
        frontier[best] = frontier[--waiting];
        for (int64_t i = 0; i < nodes; i++) siblings += tree->parents[i] == taken.parent;
        if (siblings >= in->branches) continue;
        tree->tokens[nodes] = taken.token;
        tree->parents[nodes] = taken.parent;
        tree->weights[nodes] = taken.weight;
        in->total += taken.weight;
        if (taken.depth < in->depth)
            waiting = expand(in, places, taken, nodes, frontier, waiting);
        nodes++;
    }
    tree->nodes = nodes;
}

PL_API int pl_look_up(struct pl_suffixes *in) {
    if (in->length < 0 || in->least < 1 || in->hits < 1 || in->hits > PL_MOST_HITS)
        return PL_BAD_ARGUMENT;
    find(in);
    in->found.nodes = 0;
    in->total = 0;
    if (in->matched) grow(in);
    return PL_OK;
}

PL_API int pl_look_up_lengths(struct pl_suffixes *in, int64_t lengths) {
    const int32_t *end = in->tail + in->length;
    double most = in->total;
    int64_t best = 0, last = 0;
    for (; lengths > 0; lengths--) {
        if (pl_look_up(in)) return PL_BAD_ARGUMENT;
        last = in->length;
        if (in->total > most) {
            most = in->total;
            best = last;
        }
        if (!in->shorter) break;
        in->length = in->shorter;
        in->tail = end - in->length;
    }
    if (!best) in->found.nodes = 0;
    if (!best || best == last) return PL_OK;
    in->length = best;
    in->tail = end - best;
    return pl_look_up(in); /* again: cheaper than keeping all answers */
}

/* Where a place of the text belongs in the order. */
static int64_t rank_of(const struct pl_suffixes *in, int64_t place) {
    int64_t low = 0, high = in->size;
    while (low < high) {
        int64_t middle = low + (high - low) / 2, other = in->order[middle], i = 1;
        int32_t there = 0, here = 0;
        while (i <= in->most && here == there && here >= 0) {
            there = before(in, other, i);
            here = before(in, place, i++);
        }
        if (there == here ? other < place : there < here) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int is_in_order(const struct pl_suffixes *in, int64_t place) {
    return before(in, place, 0) >= 0 && before(in, place, 1) >= 0;
}

PL_API int pl_add_tokens(struct pl_suffixes *to, const int32_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t place = to->count++;
        to->tokens[place] = tokens[i];
        if (!is_in_order(to, place)) continue;
        int64_t rank = rank_of(to, place);
        memmove(to->order + rank + 1, to->order + rank, (size_t)(to->size - rank) * 4);
        to->order[rank] = (int32_t)place;
        to->size++;
    }
    return PL_OK;
}
