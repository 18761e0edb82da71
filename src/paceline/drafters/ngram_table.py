"""Counts of what followed runs of tokens of one length."""

from __future__ import annotations

from collections import Counter

__all__ = ["MOST_NGRAMS", "SHARDS", "NGramTable", "Run"]

SHARDS = 32
MOST_NGRAMS = 1 << 16
"""N-grams kept of each length."""

Run = tuple[int, ...]


class NGramTable:
    """Counts of what followed each run of `order` - 1 tokens.

    Keeps the `width` best followers of each run ready, so that a query costs one look-up. Holds
    only dicts of tuples of numbers: the garbage collector need not walk them, which would stall a
    long text for tens of milliseconds now and then. They are sharded, because a growing dict is
    moved as a whole.

    Tie rule: of followers seen equally often, the one seen last comes first. (The paper is silent
    on ties; text drifts, so the recent habit is the better guess.)

    most: n-grams, shared evenly by the shards. A full shard forgets the runs counted longest ago,
    with all that followed them, until it is half empty.
    """

    def __init__(self, order: int, width: int = 1, most: int = MOST_NGRAMS) -> None:
        self.order = order
        self._width = width
        self._room = most // SHARDS
        self._sizes = [0] * SHARDS
        # Run -> see `followers`; the one counted last comes last.
        self._best: list[dict[Run, Run]] = [{} for _ in range(SHARDS)]
        # Counts of followers that are not among the best of their run.
        self._others: list[dict[Run, int]] = [{} for _ in range(SHARDS)]

    def count(self, run: Run, token: int) -> None:
        """Count that `token` followed `run` once more."""
        shard = run[-1] % SHARDS
        best = self._best[shard]
        known = best.pop(run, None)
        if known is None:
            best[run] = (1, token, 1)
            self._sizes[shard] += 1
        elif known[1] == token:
            best[run] = (known[0] + 1, token, known[2] + 1, *known[3:])
        else:
            best[run] = self._ranked(shard, run, known, token)
        if self._sizes[shard] > self._room:
            self._forget(shard)

    def __len__(self) -> int:
        """Number of known n-grams."""
        return sum(self._sizes)

    def followers(self, run: Run) -> Run:
        """How often anything followed `run`, then its best followers, best first, each with its
        count: (total, token, times, token, times, …); () if it was never seen."""
        return self._best[run[-1] % SHARDS].get(run, ())

    def _ranked(self, shard: int, run: Run, known: Run, token: int) -> Run:
        """The entry of a run after another `token`, which was not its best follower."""
        total, *best = known
        for at in range(2, len(best), 2):
            if best[at] == token:
                seen = best[at + 1] + 1
                del best[at : at + 2]
                break
        else:
            seen = self._others[shard].pop((*run, token), 0) + 1
            self._sizes[shard] += seen == 1
        at = 0
        while at < len(best) and best[at + 1] > seen:
            at += 2
        best[at:at] = token, seen
        if len(best) > 2 * self._width:
            self._others[shard][*run, best[-2]] = best[-1]
            del best[-2:]
        return (total + 1, *best)

    def _forget(self, shard: int) -> None:
        """Keep the runs of a shard that were counted last, up to half of its room."""
        others = Counter(ngram[:-1] for ngram in self._others[shard])
        kept: dict[Run, Run] = {}
        size = 0
        for run, known in reversed(self._best[shard].items()):
            size += len(known) // 2 + others[run]
            if size > self._room // 2:
                break
            kept[run] = known
        self._best[shard] = dict(reversed(kept.items()))
        self._others[shard] = {
            ngram: seen for ngram, seen in self._others[shard].items() if ngram[:-1] in kept
        }
        self._sizes[shard] = sum(len(known) // 2 + others[run] for run, known in kept.items())
