"""ANPD: adaptive multi-level n-gram drafting (Ou, Chen and Tian 2024, arXiv 2404.08698, section 3).

For each n = 2..N a table maps the last n-1 tokens to the tokens that followed them in this text.
It is filled from the prompt and updated with every committed token. A draft is grown token by
token, each time asking with the last n-1 tokens of committed plus drafted text, longest n first.
References have tables of their own, which are asked where those of the text know nothing.

    text: a b c d a b  ->  (b,) was followed by c, (a, b) by c    ->  draft c
                           then (b, c) by d, then (c, d) by a, …  ->  draft c d a b …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Literal

from paceline.drafters.confidence import follower_confidence
from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.prefix import common_prefix
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

__all__ = ["Anpd", "AnpdSettings", "NGramTable"]

LONGEST_ORDER = 64
SHARDS = 32
MOST_NGRAMS = 1 << 16
"""Of each length."""


@dataclass(frozen=True)
class AnpdSettings:
    """Settings of `Anpd`.

    n: longest n-gram, 2 to 64 (the paper's N, 5 there).
    k: longest draft, >= 1 (the paper's K, 6 to 8 there). A miss at every level ends the draft
    early, and plans cut it to what pays, so its length adapts.
    branches: continuations that are followed per context; 1 gives the paper's chain. From 2 on
    the draft is a tree of the likeliest paths, as many as there is room for.

    The defaults are those for planned trees; with a budget of your own the paper's may do better.
    persist: keep what was learned when another text begins, in tables that all texts of a session
    share. Off, the tables are those of the present text alone. Either way a text that continues the
    last one, as the next turn of a conversation does, is read only from where it is new.
    levels: "one" asks n-grams of length n alone, the paper's module without the levels below it
    (its figure 10): a miss there ends the draft.
    most: n-grams of each length that are kept, at least 1024; where there are more, those that
    were counted longest ago are forgotten. References have tables of the same size.

    Raises UsageError for a value out of range.
    """

    n: int = 6
    k: int = 32
    branches: int = 4
    persist: bool = False
    levels: Literal["all", "one"] = "all"
    most: int = MOST_NGRAMS

    def __post_init__(self) -> None:
        at_least(2, n=self.n)
        if self.n > LONGEST_ORDER:
            raise UsageError(
                f"n must be at most {LONGEST_ORDER}, got {self.n}: each order is a table"
            )
        at_least(1, k=self.k)
        at_least(1, branches=self.branches)
        at_least(SHARDS**2, most=self.most)


class Anpd(LookupDrafter):
    """Drafts by asking n-gram tables of the text itself, then those of its references, in both
    longest n-grams first. What followed in a reference is never guessed in place of what followed
    in the text.

    settings, changes: see `AnpdSettings`; the latter are fields of it by name.
    tables: to go on with, of the same settings; None for new ones.
    """

    def __init__(
        self,
        settings: AnpdSettings | None = None,
        tables: list[NGramTable] | None = None,
        **changes: Any,
    ) -> None:
        own = replace(settings or AnpdSettings(), **changes)
        self.max_order = own.n
        self.draft_length = own.k
        self.branches = own.branches
        self.persist = own.persist
        self._most = own.most
        self._lowest_order = 2 if own.levels == "all" else own.n
        self._text: list[int] = []
        self._tables = tables or self._new_tables()
        self._references: list[tuple[int, ...]] = []
        self._reference_tables: list[NGramTable] = []

    @classmethod
    def on(cls, host: Host, settings: AnpdSettings) -> Anpd:
        """One of a session, which shares its tables with the others where they persist."""
        if not settings.persist:
            return cls(settings)
        return cls(settings, host.learn((Anpd, settings), lambda: cls(settings)._tables))

    def start(self, text: TextStart) -> None:
        """Count the n-grams of the context, but for the part that is counted already, and those of
        the references, unless they are those of the last text."""
        self._count_references([tuple(reference) for reference in text.references])
        if not self.persist and common_prefix(self._text, text.context) < len(self._text):
            self._tables, self._text = self._new_tables(), []
        self.resume(text)

    def resume(self, text: TextStart) -> None:
        """Count what is new in the context. What was counted and is taken back stays in the
        tables: whoever said it is likely to say it again."""
        known = common_prefix(self._text, text.context)
        del self._text[known:]
        self._learn(text.context[known:])

    def observe(self, round: Round) -> None:
        """Count the n-grams that the committed tokens complete."""
        self._learn(round.path.tokens)

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """The likeliest nodes, best first; of equally likely ones that of the older parent first."""
        tokens: list[int] = []
        parents: list[int] = []
        weights: list[float] = []
        # Of the root and then of every node: the tokens up to it, its depth, what follows it.
        tails = [(*self._text[1 - self.max_order :], *path)[1 - self.max_order :]]
        depths = [0]
        followers = [self._followers(tails[0])]
        # The best guess below each that is not taken: -weight, place of the parent, rank.
        frontier = [(-share, 0, 0) for _, share in followers[0][:1]]
        while frontier and len(tokens) < budget:
            negative, above, rank = heappop(frontier)
            token, share = followers[above][rank]
            tokens.append(token)
            parents.append(above - 1)
            weights.append(-negative)
            tails.append((*tails[above], token)[1 - self.max_order :])
            depths.append(depths[above] + 1)
            more = depths[-1] < self.draft_length and len(tokens) < budget
            followers.append(self._followers(tails[-1]) if more else [])
            if followers[-1]:
                heappush(frontier, (negative * followers[-1][0][1], len(tokens), 0))
            if rank + 1 < len(followers[above]):
                next_best = negative / share * followers[above][rank + 1][1]
                heappush(frontier, (next_best, above, rank + 1))
        return Tree(tuple(tokens), tuple(parents), tuple(weights)) if tokens else EMPTY

    def query(self, tail: Sequence[int]) -> Sequence[int]:
        """The likeliest continuations of the longest n-gram that is known, best first; none where
        even the shortest, with all levels the last token alone, was never seen before."""
        return [token for token, _ in self._followers(tail)]

    def _followers(self, tail: Sequence[int]) -> list[tuple[int, float]]:
        """See `query`; each with how likely it is to come."""
        found = _longest(self._tables, tail)
        return found or _longest(self._reference_tables, tail)

    def _learn(self, tokens: Iterable[int]) -> None:
        _count(self._tables, self._text, tokens)

    def _count_references(self, references: list[tuple[int, ...]]) -> None:
        if references == self._references:
            return
        self._references = references
        self._reference_tables = self._new_tables() if references else []
        for reference in references:
            _count(self._reference_tables, [], reference)

    def _new_tables(self) -> list[NGramTable]:
        orders = range(self._lowest_order, self.max_order + 1)
        return [NGramTable(order, self.branches, self._most) for order in orders]


def _count(tables: Sequence[NGramTable], text: list[int], tokens: Iterable[int]) -> None:
    """Let `text` go on with `tokens`, and count the n-grams that these complete.

    tables: of consecutive orders, ascending.
    """
    lowest = tables[0].order
    for token in tokens:
        for table in tables[: max(0, len(text) + 2 - lowest)]:
            table.count(tuple(text[1 - table.order :]), token)
        text.append(token)


def _longest(tables: Sequence[NGramTable], tail: Sequence[int]) -> list[tuple[int, float]]:
    """The followers of the longest run at the end of `tail` that is known.

    tables: of ascending orders.
    """
    for table in reversed(tables):
        if table.order <= len(tail) + 1 and (
            found := table.followers(tuple(tail[1 - table.order :]))
        ):
            return found
    return []


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
        self._counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(SHARDS)]
        # Run -> how often anything followed it, and its best followers; counted last, placed last.
        self._best: list[dict[tuple[int, ...], tuple[int, ...]]] = [{} for _ in range(SHARDS)]

    def count(self, run: tuple[int, ...], token: int) -> None:
        """See `token` follow `run` once more."""
        shard = run[-1] % SHARDS
        counts = self._counts[shard]
        total, *best = self._best[shard].pop(run, (0,))
        counts[*run, token] = seen = counts.get((*run, token), 0) + 1
        if best[:1] != [token]:
            # Only `token` changed, upwards: the order of the others stays.
            best = [other for other in best if other != token]
            place = sum(counts[*run, other] > seen for other in best)
            best.insert(place, token)
        self._best[shard][run] = (total + 1, *best[: self._width])
        if len(counts) > self._room:
            self._forget(shard)

    def __len__(self) -> int:
        """How many n-grams are known."""
        return sum(map(len, self._counts))

    def best(self, run: tuple[int, ...]) -> Sequence[int]:
        """The most frequent followers of `run`, best first; () where it was never seen."""
        return self._best[run[-1] % SHARDS].get(run, ())[1:]

    def followers(self, run: tuple[int, ...]) -> list[tuple[int, float]]:
        """The same, each with how likely it is to come, see `follower_confidence`."""
        shard = run[-1] % SHARDS
        known = self._best[shard].get(run)
        if known is None:
            return []
        total, *best = known
        counts = self._counts[shard]
        return [
            (token, follower_confidence(len(run), counts[*run, token], total)) for token in best
        ]

    def _forget(self, shard: int) -> None:
        """Keep the runs of a shard that were counted last, with half of its n-grams at most."""
        followers = Counter(ngram[:-1] for ngram in self._counts[shard])
        kept: dict[tuple[int, ...], tuple[int, ...]] = {}
        room = self._room // 2
        for run in reversed(self._best[shard]):
            room -= followers[run]
            if room < 0:
                break
            kept[run] = self._best[shard][run]
        self._best[shard] = dict(reversed(kept.items()))
        self._counts[shard] = {
            ngram: seen for ngram, seen in self._counts[shard].items() if ngram[:-1] in kept
        }
