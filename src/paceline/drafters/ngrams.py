"""N-grams of a text, and the likeliest continuations by them: in the C library, or in Python.

Both count, forget and draft alike; tests compare them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import chain
from weakref import finalize

from paceline.drafters.lookup import FOLLOWER_DOUBT, follower_confidence
from paceline.errors import UsageError
from paceline.kernels.native.buffer import Buffer
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.native.signatures import NGramDraft
from paceline.tree import EMPTY, Tree
from paceline.tree_columns import TreeColumns

SHARDS = 32
MOST_NGRAMS = 1 << 16
"""N-grams kept of each length."""

Run = tuple[int, ...]
LONGEST_RUN = 63
_LARGEST = 2**31 - 1


class NGramTable:
    """Counts of what followed each run of `order` - 1 tokens.

    Of followers seen equally often, the one seen last comes first. (The paper is silent on ties.)
    Holds only dicts of tuples of numbers, which the garbage collector need not walk. They are
    sharded, because a growing dict is moved as a whole.

    most: n-grams, shared evenly by the shards. A full shard forgets the runs counted longest ago,
    with all that followed them, until it is half empty.
    """

    def __init__(self, order: int, width: int = 1, most: int = MOST_NGRAMS) -> None:
        self.order = order
        self._width = width
        self._room = most // SHARDS
        self._sizes = [0] * SHARDS  # known n-grams
        # Run -> its followers, each with its count, best first; the run counted last comes last.
        self._runs: list[dict[Run, Run]] = [{} for _ in range(SHARDS)]

    def count(self, run: Run, token: int) -> None:
        """Count that `token` followed `run` once more."""
        shard = run[-1] % SHARDS
        known = self._runs[shard].pop(run, ())
        counts = dict(zip(known[::2], known[1::2], strict=True))
        seen = counts.pop(token, 0) + 1
        self._sizes[shard] += seen == 1
        before = {other: times for other, times in counts.items() if times > seen}
        self._runs[shard][run] = tuple(chain(*(before | {token: seen} | counts).items()))
        if self._sizes[shard] > self._room:
            self._forget(shard)

    def followers(self, run: Run) -> Run:
        """How often anything followed `run`, then its best followers, best first, each with its
        count: (total, token, times, token, times, …); () if it was never seen."""
        known = self._runs[run[-1] % SHARDS].get(run, ())
        return (sum(known[1::2]), *known[: 2 * self._width]) if known else ()

    def _forget(self, shard: int) -> None:
        """Keep the runs of a shard that were counted last, up to half of its room."""
        kept, size = dict[Run, Run](), 0
        for run, known in reversed(self._runs[shard].items()):
            if size + len(known) // 2 > self._room // 2:
                break
            kept[run], size = known, size + len(known) // 2
        self._runs[shard], self._sizes[shard] = dict(reversed(kept.items())), size


_Followers = tuple[Run, int, int]
"""What follows a run, see `NGramTable.followers`; its length; that of the longest run which may be
known after one more token."""
_NOBODY: _Followers = ((), 0, 0)


class _CountedNGrams:
    """Counts of what followed runs of `shortest` to `longest` tokens, as in `NGramTable`; in Python.

    width: followers of a run to guess. most: n-grams of each length to keep.
    """

    def __init__(self, shortest: int, longest: int, width: int, most: int) -> None:
        self.shortest, self.longest = shortest, longest
        orders = range(shortest + 1, longest + 2)
        self._tables = [NGramTable(order, width, most) for order in orders]

    def count(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Count the n-grams completed by `tokens`, which follow `before`."""
        tail = tuple(before[-self.longest :])
        for token in tokens:
            for table in self._tables[: max(0, len(tail) + 1 - self.shortest)]:
                table.count(tail[1 - table.order :], token)
            tail = (*tail, token)[-self.longest :]

    def draft(self, tail: Run, budget: int, depth: int, others: NGrams | None = None) -> Tree:
        """The likeliest nodes after the last tokens of a text, best first; of equally likely ones,
        that of the older parent first.

        depth: of the deepest node. others: of the same class; asked where this one knows nothing.
        """
        tokens: list[int] = []
        parents: list[int] = []
        tail = tail[-self.longest :]
        followers = self._followers(tail, self.longest, others)
        if budget < 1 or not followers[0]:
            return EMPTY
        # For the root, then each node: its path chance, the tokens up to it, its depth, its
        # followers.
        nodes = [(1.0, tail, 0, followers)]
        # The best guess not taken yet after each: -weight, place of the parent, rank.
        frontier = [(-_share(followers, 0), 0, 0)]
        while frontier and len(tokens) < budget:
            negative, above, rank = heappop(frontier)
            path_chance, tail, level, found = nodes[above]
            token = found[0][1 + 2 * rank]
            tokens.append(token)
            parents.append(above - 1)
            if len(found[0]) > 3 + 2 * rank:
                heappush(frontier, (-path_chance * _share(found, rank + 1), above, rank + 1))
            followers = _NOBODY
            if level + 1 < depth and len(tokens) < budget:
                tail = (*tail, token)[-self.longest :]
                followers = self._followers(tail, found[2], others)
                if followers[0]:
                    heappush(frontier, (negative * _share(followers, 0), len(tokens), 0))
            nodes.append((-negative, tail, level + 1, followers))
        return Tree(tuple(tokens), tuple(parents), tuple(node[0] for node in nodes[1:]))

    def _followers(self, tail: Run, most: int, others: NGrams | None) -> _Followers:
        """What follows the end of `tail`, of which at most `most` tokens are known here, or else in
        `others`."""
        if found := self._known(tail, most):
            # A run that is known is also known without its last token.
            return *found, found[1] + 1
        if isinstance(others, _CountedNGrams) and (found := others._known(tail, others.longest)):
            return *found, self.shortest
        return _NOBODY

    def _known(self, tail: Run, most: int) -> tuple[Run, int] | None:
        """What follows the longest known run, and its length."""
        for length in range(min(most, len(tail), self.longest), self.shortest - 1, -1):
            if known := self._tables[length - self.shortest].followers(tail[-length:]):
                return known, length
        return None


def _share(followers: _Followers, rank: int) -> float:
    """Estimated probability of the follower of this rank."""
    known, length, _ = followers
    return follower_confidence(length, known[2 + 2 * rank], known[0])


class _NativeNGrams:
    """In the C library; see `_CountedNGrams`."""

    def __init__(self, shortest: int, longest: int, width: int, most: int) -> None:
        self.shortest, self.longest = shortest, longest
        self._native = kernels()
        self._held = self._native.ngrams_new(shortest, longest, width, most)
        # Not at the end of the process: a thread may still draft then.
        finalize(self, self._native.ngrams_free, self._held).atexit = False
        self._tail, self._given = Buffer(ctypes.c_int32), Buffer(ctypes.c_int32)
        self._call = NGramDraft(own=self._held, doubt=FOLLOWER_DOUBT)
        self._address = ctypes.addressof(self._call)
        self._found = TreeColumns(self._call.found)

    def count(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Raises UsageError for ids below 0 or beyond 32 bits."""
        if len(tokens) == 0:
            return
        if not 0 <= min(tokens) <= max(tokens) <= _LARGEST:
            raise UsageError("a token id is negative or does not fit into 32 bits")
        near = before[-self.longest :]
        given = self._given.put([*near, *tokens])
        self._native.ngrams_count(self._held, given, len(near), len(tokens))

    def draft(self, tail: Run, budget: int, depth: int, others: NGrams | None = None) -> Tree:
        near, call = tail[-self.longest :], self._call
        self._found.make_room(budget)
        call.tail, call.length = self._tail.put(near), len(near)
        call.budget, call.depth = max(0, budget), depth
        call.others = others._held if isinstance(others, _NativeNGrams) else None
        self._native.ngrams_draft(self._address)
        return self._found.tree()


NGrams = _CountedNGrams | _NativeNGrams


def new_ngrams(shortest: int, longest: int, width: int, most: int) -> NGrams:
    """Counts in the library if it is available."""
    kind = _CountedNGrams if unavailable() else _NativeNGrams
    return kind(shortest, longest, width, most)
