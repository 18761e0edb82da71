"""Prompt lookup decoding, the baseline (Saxena 2023; `prompt_lookup_num_tokens` in transformers).

Finds the first earlier occurrence of the text's last tokens, trying long runs first, and proposes
what followed there.

    text: a b c d a b  ->  "a b" occurs at the beginning, followed by c d …  ->  draft c d a b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.datastore import LONGEST, Search
from paceline.drafters.lookup import TextLookup, copied_chain
from paceline.drafters.settings import Settings, whole
from paceline.tree import EMPTY, Tree

# Leftmost places that are compared beyond what the array compares, at most: text that repeats
# itself has any number of them.
_TRIED = 1024


@dataclass(frozen=True)
class PromptLookupSettings(Settings):
    """Settings of `PromptLookup`.

    n: longest run to look for, 1 to 64.
    k: most tokens to copy, >= 1.
    """

    n: int = whole(3, 1, 64)
    k: int = whole(10, 1)


class PromptLookup(TextLookup):
    """Copies from the leftmost earlier occurrence of the text's last tokens, not of references."""

    def __init__(self, settings: PromptLookupSettings | None = None, **changes: Any) -> None:
        super().__init__()
        own = replace(settings or PromptLookupSettings(), **changes)
        self.max_run, self.draft_length = own.n, own.k
        self._search = Search(hits=1, depth=1)

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """A chain of up to `k` copied tokens."""
        tail, count = self._tail(path, self.max_run), min(self.draft_length, budget)
        found = self._own.look_up(tail, min(1, count), self._search)
        if not found.matched:
            return EMPTY
        places = self._own.places(found)
        if found.matched == LONGEST and len(places) > _TRIED:
            places = np.partition(places, _TRIED)[:_TRIED]
        places, matched = self._own.longest(places, found.matched, tail)
        begin = int(places.min())
        return copied_chain(self._text[begin : begin + count], matched)
