"""REST: retrieval from a datastore (He et al. 2023, arXiv 2311.08252, section 3).

The most frequent continuations of the text's longest suffix in a datastore of other texts make a
tree. The text itself is not searched. If documents with long matches promise more after short ones,
their continuations are proposed instead.

    datastore: … for i in range(10): … for i in range(n): … for i in range(n): …
    text: … for i in range(   ->  draft: n ): … (2 of 3), 10 ): … (1 of 3)

The paper tries the lengths from 16 down and reads up to 5000 hits. Here prefixes are sorted by
their ends, so one search finds the longest match, and at most 256 evenly sampled hits are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from paceline.datastore import LONGEST, MOST_HITS, Search
from paceline.drafters.host import Host
from paceline.drafters.known_texts import KnownTexts, NearTexts
from paceline.drafters.lookup import FOLLOWER_DOUBT, LookupDrafter, TextReader
from paceline.drafters.settings import Settings, at_least, whole
from paceline.records import TextStart
from paceline.tree import Tree


@dataclass(frozen=True)
class RestSettings(Settings):
    """Settings of `Rest`.

    n: shortest match, >= 1 (the paper: 2). longest: longest match to look for, `n` to 32 (the
    paper: 16). k: depth of the tree, >= 1 (the paper: 10); the planner cuts it.
    near: documents with a long match to search separately, see `NearTexts`, >= 0 (the paper: 0).
    datastore: its folder; "" is the session's, or the model's own, which must exist.
    """

    n: int = whole(2, 1)
    longest: int = whole(16, 1, LONGEST)
    k: int = whole(10, 1)
    near: int = whole(16, 0)
    datastore: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.n, longest=self.longest)


class Rest(TextReader, LookupDrafter):
    """Guesses what followed in other texts.

    texts: the datastore's; None for none, as without a host, see `on`.
    """

    reads_text = False

    def __init__(
        self, settings: RestSettings | None = None, texts: KnownTexts | None = None, **changes: Any
    ) -> None:
        super().__init__()
        own = replace(settings or RestSettings(), **changes)
        self._search = Search(least=own.n, depth=own.k, hits=MOST_HITS, doubt=FOLLOWER_DOUBT)
        self._longest = own.longest
        self._texts = texts or KnownTexts.of(None, own.datastore)
        self._near = NearTexts(own.near, own.k)

    @classmethod
    def on(cls, host: Host, settings: RestSettings) -> Rest:
        """One for a session, with its model's datastore. Raises what `KnownTexts.of` raises."""
        return cls(settings, KnownTexts.of(host, settings.datastore, needed=True))

    def start(self, text: TextStart) -> None:
        """See `TextReader.start`; also refresh the datastore."""
        super().start(text)
        self._texts.refresh()
        self._near.forget()

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """The most frequent continuations after the longest match."""
        tail = self._tail(path, self._longest)
        found = self._texts.look_up(tail, budget, self._search, None if path else self._near)
        tree, total = self._near.look_up(tail, budget)
        return tree if total > reduce(add, found.tree.weights or (), 0.0) else found.tree
