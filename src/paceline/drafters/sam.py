"""SAM-Decoding: the longest match decides (Hu et al. 2024, arXiv 2411.10666, section 3).

The end of the text is looked up in the text itself and in a datastore, at any match length. The
datastore is used only if its match is longer by some tokens: the text is the better guide to
itself. The most frequent continuation is copied, of equally frequent ones the last; the official
code copies what followed the first occurrence.

    text: … the suffix automaton of the text … the suffix  ->  draft: automaton of the text …

The paper holds both in suffix automata. Here they are suffix arrays of the text read backwards,
which find the same matches and can be mapped from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.datastore import LONGEST, Search
from paceline.drafters.host import Host
from paceline.drafters.known_texts import KnownTexts
from paceline.drafters.lookup import FOLLOWER_DOUBT, TextLookup
from paceline.drafters.settings import Settings, whole
from paceline.records import TextStart
from paceline.tree import Tree


@dataclass(frozen=True)
class SamSettings(Settings):
    """Settings of `Sam`.

    n: shortest match, >= 1. k: longest draft, >= 1 (the paper's code: 40); the planner cuts it.
    branches: continuations to follow per context, >= 1; 1 gives the paper's chain.
    bias: the datastore's match must be longer by more than this, >= 0 (the paper's code: 5).
    datastore: its folder; "" is the session's, or the model's own, if there is one; "none" is none.
    """

    n: int = whole(1, 1, LONGEST)
    k: int = whole(40, 1)
    branches: int = whole(4, 1)
    bias: int = whole(1, 0)
    datastore: str = ""


class Sam(TextLookup):
    """Copies from where the longest suffix of the text occurred before.

    texts: the datastore's; None for none, as without a host, see `on`.
    """

    def __init__(
        self, settings: SamSettings | None = None, texts: KnownTexts | None = None, **changes: Any
    ) -> None:
        super().__init__()
        own = replace(settings or SamSettings(), **changes)
        self._search = Search(least=own.n, depth=own.k, branches=own.branches, doubt=FOLLOWER_DOUBT)
        self._bias = own.bias
        self._texts = texts or KnownTexts.of(None, own.datastore)

    @classmethod
    def on(cls, host: Host, settings: SamSettings) -> Sam:
        """One for a session, with its model's datastore. Raises what `KnownTexts.of` raises."""
        return cls(settings, KnownTexts.of(host, settings.datastore))

    def start(self, text: TextStart) -> None:
        """See `TextLookup.start`; also refresh the datastore."""
        super().start(text)
        self._texts.refresh()

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """What followed most often after the longest match."""
        tail = self._tail(path, LONGEST)
        own = self._own.look_up(tail, budget, self._search)
        other = self._texts.look_up(tail, budget, self._search)
        return other.tree if other.matched > own.matched + self._bias else own.tree
