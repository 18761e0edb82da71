"""ANPD: adaptive multi-level n-gram drafting (Ou, Chen and Tian 2024, arXiv 2404.08698, section 3).

For each n = 2..N a table maps the last n-1 tokens to the tokens that followed them in this text.
It is filled from the prompt and updated with every committed token. A draft is grown token by
token, each time asking with the last n-1 tokens of committed plus drafted text, longest n first.

    text: a b c d a b  ->  (b,) was followed by c, (a, b) by c    ->  draft c
                           then (b, c) by d, then (c, d) by a, …  ->  draft c d a b …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Literal

from paceline.drafters.confidence import follower_confidence
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.prefix import common_prefix
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

__all__ = ["Anpd", "AnpdSettings", "NGramTable"]

LONGEST_ORDER = 64
SHARDS = 32


@dataclass(frozen=True)
class AnpdSettings:
    """Settings of `Anpd`.

    n: longest n-gram, 2 to 64 (the paper's N, 5 there).
    k: longest draft, >= 1 (the paper's K, 6 to 8 there). A miss at every level ends the draft
    early, and plans cut it to what pays, so its length adapts.
    branches: continuations that are followed per context; 1 gives the paper's chain. From 2 on
    the next best ones become branches of the tree, one detour from the best path at most.

    The defaults are those for planned trees; with a budget of your own the paper's may do better.
    persist: keep what was learned when another text begins. Off, the tables are those of the
    present text alone. Either way a text that continues the last one, as the next turn of a
    conversation does, is read only from where it is new, so nothing is counted twice.
    levels: "one" asks n-grams of length n alone, the paper's module without the levels below it
    (its figure 10): a miss there ends the draft.

    Raises UsageError for a value out of range.
    """

    n: int = 6
    k: int = 32
    branches: int = 2
    persist: bool = False
    levels: Literal["all", "one"] = "all"

    def __post_init__(self) -> None:
        at_least(2, n=self.n)
        if self.n > LONGEST_ORDER:
            raise UsageError(
                f"n must be at most {LONGEST_ORDER}, got {self.n}: each order is a table"
            )
        at_least(1, k=self.k)
        at_least(1, branches=self.branches)


class Anpd(Drafter):
    """Drafts by asking n-gram tables of the text itself, longest first.

    settings, changes: see `AnpdSettings`; the latter are fields of it by name.
    """

    def __init__(self, settings: AnpdSettings | None = None, **changes: Any) -> None:
        own = replace(settings or AnpdSettings(), **changes)
        self.max_order = own.n
        self.draft_length = own.k
        self.branches = own.branches
        self.persist = own.persist
        self._lowest_order = 2 if own.levels == "all" else own.n
        self._text: list[int] = []
        self._tables = self._new_tables()

    def start(self, text: TextStart) -> None:
        """Count the n-grams of the context, but for the part that is counted already."""
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

    def propose(self, budget: int) -> Tree:
        """Grow the likeliest path to its full length, then paths with one detour from it."""
        tokens: list[int] = []
        parents: list[int] = []
        weights: list[float] = []
        tails: dict[int, tuple[int, ...]] = {ROOT: tuple(self._text[1 - self.max_order :])}
        # Guesses not yet taken: (detours, depth, parent, rank among siblings, token, weight).
        frontier: list[tuple[int, int, int, int, int, float]] = []

        def look_ahead(node: int, detours: int, depth: int) -> None:
            reach = 1.0 if node == ROOT else weights[node]
            found = self._followers(tails[node])
            for rank, (token, share) in enumerate(found if detours == 0 else found[:1]):
                taken = (detours + (rank > 0), depth + 1, node, rank, token, reach * share)
                heappush(frontier, taken)

        look_ahead(ROOT, 0, 0)
        while frontier and len(tokens) < budget:
            detours, depth, parent, _, token, weight = heappop(frontier)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            weights.append(weight)
            tails[node] = (*tails[parent], token)[1 - self.max_order :]
            if depth < self.draft_length:
                look_ahead(node, detours, depth)
        return Tree(tuple(tokens), tuple(parents), tuple(weights)) if tokens else EMPTY

    def query(self, tail: Sequence[int]) -> Sequence[int]:
        """The likeliest continuations of the longest n-gram that is known, best first; none where
        even the shortest, with all levels the last token alone, was never seen before."""
        return [token for token, _ in self._followers(tail)]

    def _followers(self, tail: Sequence[int]) -> list[tuple[int, float]]:
        """See `query`; each with how likely it is to come."""
        for order in range(min(self.max_order, len(tail) + 1), self._lowest_order - 1, -1):
            found = self._tables[order - self._lowest_order].followers(tuple(tail[1 - order :]))
            if found:
                return found
        return []

    def _learn(self, tokens: Iterable[int]) -> None:
        text = self._text
        for token in tokens:
            for table in self._tables[: max(0, len(text) + 2 - self._lowest_order)]:
                table.count(tuple(text[1 - table.order :]), token)
            text.append(token)

    def _new_tables(self) -> list[NGramTable]:
        orders = range(self._lowest_order, self.max_order + 1)
        return [NGramTable(order, self.branches) for order in orders]


class NGramTable:
    """Counts of what followed each run of `order` - 1 tokens.

    Keeps the `width` best followers of each run ready, so that a query costs one look-up. Holds
    nothing but dicts of tuples of numbers: the garbage collector does not have to walk them, which
    would stop a long text for tens of milliseconds now and then. They are cut into shards, because
    a dict that grows is moved as a whole.

    Tie rule: of followers seen equally often, the one seen last comes first. (The paper is silent
    on ties; text drifts, so the recent habit is the better guess.)
    """

    def __init__(self, order: int, width: int = 1) -> None:
        self.order = order
        self._width = width
        self._counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(SHARDS)]
        # Run -> how often anything followed it, and its best followers.
        self._best: list[dict[tuple[int, ...], tuple[int, ...]]] = [{} for _ in range(SHARDS)]

    def count(self, run: tuple[int, ...], token: int) -> None:
        """See `token` follow `run` once more."""
        shard = run[-1] % SHARDS
        counts = self._counts[shard]
        total, *best = self._best[shard].get(run, (0,))
        counts[*run, token] = seen = counts.get((*run, token), 0) + 1
        if best[:1] != [token]:
            # Only `token` changed, upwards: the order of the others stays.
            best = [other for other in best if other != token]
            place = sum(counts[*run, other] > seen for other in best)
            best.insert(place, token)
        self._best[shard][run] = (total + 1, *best[: self._width])

    def best(self, run: tuple[int, ...]) -> Sequence[int]:
        """The most frequent followers of `run`, best first; () where it was never seen."""
        return self._best[run[-1] % SHARDS].get(run, ())[1:]

    def followers(self, run: tuple[int, ...]) -> list[tuple[int, float]]:
        """The same, each with how likely it is to come, see `follower_confidence`."""
        shard = run[-1] % SHARDS
        total, *best = self._best[shard].get(run, (0,))
        counts = self._counts[shard]
        return [
            (token, follower_confidence(len(run), counts[*run, token], total)) for token in best
        ]
