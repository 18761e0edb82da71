"""Counts of what followed runs of tokens of one length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["MOST_NGRAMS", "SHARDS", "NGramTable", "Run"]

SHARDS = 32
MOST_NGRAMS = 1 << 16
"""Of each length."""

Run = tuple[int, ...]


class NGramTable:
    """Counts of what followed each run of `order` - 1 tokens.

    Keeps the `width` best followers of each run ready, so that a query costs one look-up. Holds
    nothing but dicts of tuples of numbers: the garbage collector does not have to walk them, which
    would stop a long text for tens of milliseconds now and then. They are cut into shards, because
    a dict that grows is moved as a whole.

    Tie rule: of followers seen equally often, the one seen last comes first. (The paper is silent
    on ties; text drifts, so the recent habit is the better guess.)

    most: n-grams, of which each shard has its part. In one that is full the runs that were counted
    longest ago are forgotten with all that followed them, until it is half empty.
    """

    def __init__(self, order: int, width: int = 1, most: int = MOST_NGRAMS) -> None:
        self.order = order
        self._width = width
        self._room = most // SHARDS
        self._sizes = [0] * SHARDS
        # Run -> see `followers`; counted last, placed last.
        self._best: list[dict[Run, Run]] = [{} for _ in range(SHARDS)]
        # How often followers came that are not among the best of their run.
        self._others: list[dict[Run, int]] = [{} for _ in range(SHARDS)]

    def count(self, run: Run, token: int) -> None:
        """See `token` follow `run` once more."""
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
        """How many n-grams are known."""
        return sum(self._sizes)

    def followers(self, run: Run) -> Run:
        """How often anything followed `run`, then its best followers, each with how often it did,
        best first: (total, token, times, token, times, …); () where it was never seen."""
        return self._best[run[-1] % SHARDS].get(run, ())

    def best(self, run: Run) -> Sequence[int]:
        """The most frequent followers of `run`, best first; () where it was never seen."""
        return self.followers(run)[1::2]

    def _ranked(self, shard: int, run: Run, known: Run, token: int) -> Run:
        """What is known of a run when `token`, which was not its best follower, has come again."""
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
        """Keep the runs of a shard that were counted last, with half of its n-grams at most."""
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
