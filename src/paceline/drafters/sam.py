"""SAM-Decoding: the longest match decides (Hu et al. 2024, arXiv 2411.10666, section 3).

The end of the text is looked up in the text itself and in a datastore, both at whatever length it
matches. The datastore is believed only where it matches by some tokens more: the text knows best
what it is about. What followed most often is copied from there, of equally frequent ones what
stands last.

    text: … the suffix automaton of the text … the suffix  ->  draft: automaton of the text …

The paper holds both in suffix automata. Here they are suffix arrays of the text read backwards,
which find the same matches, and a file of which can be mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.datastore import Search, SuffixArray
from paceline.drafters.confidence import FOLLOWER_DOUBT
from paceline.drafters.host import Host
from paceline.drafters.known_texts import opened_arrays
from paceline.drafters.settings import at_least
from paceline.drafters.text_lookup import TextLookup
from paceline.tree import Tree

__all__ = ["Sam", "SamSettings"]


@dataclass(frozen=True)
class SamSettings:
    """Settings of `Sam`.

    n: shortest match, >= 1. k: longest draft, >= 1 (the paper's code: 40); plans cut it.
    branches: continuations that are followed per context, >= 1; 1 gives the paper's chain.
    bias: so many tokens more the datastore has to match by, >= 0 (the paper's code: 5).
    datastore: its folder; "" is the model's own one, if it has one, "none" is none.

    Raises UsageError for a value out of range.
    """

    n: int = 1
    k: int = 40
    branches: int = 1
    bias: int = 5
    datastore: str = ""

    def __post_init__(self) -> None:
        at_least(1, n=self.n)
        at_least(1, k=self.k)
        at_least(1, branches=self.branches)
        at_least(0, bias=self.bias)


class Sam(TextLookup):
    """Copies from where the longest suffix of the text stood before.

    settings, changes: see `SamSettings`; the latter are fields of it by name.
    texts: the datastore's; none without a host, see `on`.
    """

    def __init__(
        self,
        settings: SamSettings | None = None,
        texts: Sequence[SuffixArray] = (),
        **changes: Any,
    ) -> None:
        super().__init__()
        own = replace(settings or SamSettings(), **changes)
        self._search = Search(least=own.n, depth=own.k, branches=own.branches, doubt=FOLLOWER_DOUBT)
        self._bias = own.bias
        self._texts = list(texts)

    @classmethod
    def on(cls, host: Host, settings: SamSettings) -> Sam:
        """One of a session, with the datastore of its model. Raises what `opened_arrays` does."""
        return cls(settings, opened_arrays(host, settings.datastore))

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """What followed most often behind the longest match."""
        tail = self._tail(path)
        best = self._own.look_up(tail, budget, self._search)
        least = best.matched + self._bias
        for array in self._texts:
            found = array.look_up(tail, budget, self._search)
            if found.matched > max(least, best.matched):
                best = found
        return best.tree
