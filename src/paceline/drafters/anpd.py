"""ANPD: adaptive multi-level n-gram drafting (Ou, Chen and Tian 2024, arXiv 2404.08698, section 3).

For each n = 2..N a table maps the last n-1 tokens to the tokens that followed them in this text.
It is filled from the prompt and updated with every committed token. A draft is grown token by
token, each time asking with the last n-1 tokens of committed plus drafted text, longest n first.
References have tables of their own, which are asked where those of the text know nothing.

    text: a b c d a b  ->  (b,) was followed by c, (a, b) by c    ->  draft c
                           then (b, c) by d, then (c, d) by a, …  ->  draft c d a b …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Literal

from paceline.drafters.confidence import follower_confidence
from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.ngram_table import MOST_NGRAMS, SHARDS, NGramTable, Run
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.prefix import common_prefix
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

__all__ = ["Anpd", "AnpdSettings"]

LONGEST_ORDER = 64
_Followers = tuple[Run, int, int]
"""What follows a run, see `NGramTable.followers`; its length; that of the longest run which may be
known with one token more."""
_NOBODY: _Followers = ((), 0, 0)


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
        self._shortest = 1 if own.levels == "all" else own.n - 1
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
        longest = self.max_order - 1
        tokens: list[int] = []
        parents: list[int] = []
        tail = (*self._text[-longest:], *path)[-longest:]
        followers = self._followers(tail, longest)
        if not followers[0]:
            return EMPTY
        # Of the root and then of every node: how likely it is, the tokens up to it, its depth, what
        # follows it.
        nodes = [(1.0, tail, 0, followers)]
        # The best guess below each that is not taken: -weight, place of the parent, rank.
        frontier = [(-_share(followers, 0), 0, 0)]
        while frontier and len(tokens) < budget:
            negative, above, rank = heappop(frontier)
            reach, tail, depth, found = nodes[above]
            token = found[0][1 + 2 * rank]
            tokens.append(token)
            parents.append(above - 1)
            if len(found[0]) > 3 + 2 * rank:
                heappush(frontier, (-reach * _share(found, rank + 1), above, rank + 1))
            followers = _NOBODY
            if depth + 1 < self.draft_length and len(tokens) < budget:
                tail = (*tail, token)[-longest:]
                followers = self._followers(tail, found[2])
                if followers[0]:
                    heappush(frontier, (negative * _share(followers, 0), len(tokens), 0))
            nodes.append((-negative, tail, depth + 1, followers))
        return Tree(tuple(tokens), tuple(parents), tuple(node[0] for node in nodes[1:]))

    def query(self, tail: Sequence[int]) -> Sequence[int]:
        """The likeliest continuations of the longest n-gram that is known, best first; none where
        even the shortest, with all levels the last token alone, was never seen before."""
        longest = self.max_order - 1
        return list(self._followers(tuple(tail[-longest:]), longest)[0][1::2])

    def _followers(self, tail: Run, most: int) -> _Followers:
        """What follows the end of `tail` by the text, of which at most `most` tokens are known to
        it, or else by references."""
        length = min(most, len(tail))
        while length >= self._shortest:
            if known := self._tables[length - self._shortest].followers(tail[-length:]):
                # What is known with one token more is known without its last one.
                return known, length, length + 1
            length -= 1
        for table in reversed(self._reference_tables):
            length = table.order - 1
            if length <= len(tail) and (known := table.followers(tail[-length:])):
                return known, length, self._shortest
        return _NOBODY

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
        orders = range(self._shortest + 1, self.max_order + 1)
        return [NGramTable(order, self.branches, self._most) for order in orders]


def _share(followers: _Followers, rank: int) -> float:
    """How likely the follower of this rank is to come, as far as is known."""
    known, length, _ = followers
    return follower_confidence(length, known[2 + 2 * rank], known[0])


def _count(tables: Sequence[NGramTable], text: list[int], tokens: Iterable[int]) -> None:
    """Let `text` go on with `tokens`, and count the n-grams that these complete.

    tables: of consecutive orders, ascending.
    """
    lowest, longest = tables[0].order, tables[-1].order - 1
    tail = tuple(text[-longest:])
    for token in tokens:
        for table in tables[: max(0, len(tail) + 2 - lowest)]:
            table.count(tail[1 - table.order :], token)
        tail = (*tail, token)[-longest:]
        text.append(token)
