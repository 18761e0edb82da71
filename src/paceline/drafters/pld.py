"""Prompt lookup decoding, the baseline (Saxena 2023; `prompt_lookup_num_tokens` in transformers).

Finds the first earlier occurrence of the text's last tokens, trying long runs first, and proposes
what followed there.

    text: a b c d a b  ->  "a b" occurs at the beginning, followed by c d …  ->  draft c d a b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.drafters.lookup import LookupDrafter, TextReader, copied_chain
from paceline.drafters.settings import Settings, whole
from paceline.records import TextStart
from paceline.tree import Tree


@dataclass(frozen=True)
class PromptLookupSettings(Settings):
    """Settings of `PromptLookup`.

    n: longest run to look for, 1 to 64: each length has a table.
    k: most tokens to copy, >= 1.

    Raises UsageError for a value out of range.
    """

    n: int = whole(3, 1, 64)
    k: int = whole(10, 1)


class PromptLookup(TextReader, LookupDrafter):
    """Copies from the leftmost earlier occurrence of the text's last tokens.

    Unlike the original, it does not rescan the text: a table per run length keeps where each run
    was first continued, so a round costs the same at any text length.
    """

    def __init__(self, settings: PromptLookupSettings | None = None, **changes: Any) -> None:
        super().__init__()
        own = replace(settings or PromptLookupSettings(), **changes)
        self.max_run = own.n
        self.draft_length = own.k
        self._first: list[dict[tuple[int, ...], int]] = []

    def start(self, text: TextStart) -> None:
        """Index the context; references are ignored."""
        self._text = []
        self._first = [{} for _ in range(self.max_run)]
        self._learn(text.context)

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """A chain of up to `k` copied tokens."""
        tail = tuple(self._tail(path, self.max_run))
        for run in range(len(tail), 0, -1):
            begin = self._first[run - 1].get(tail[-run:])
            if begin is not None:
                end = begin + max(0, min(self.draft_length, budget))
                return copied_chain(self._text[begin:end], run)
        return Tree()

    def _take_back(self, known: int) -> None:
        for place in range(known, len(self._text)):
            for run, first in enumerate(self._first[:place], start=1):
                tail = tuple(self._text[place - run : place])
                if first.get(tail) == place:
                    del first[tail]

    def _learn(self, tokens: Sequence[int]) -> None:
        text = self._text
        for token in tokens:
            for run, first in enumerate(self._first[: len(text)], start=1):
                first.setdefault(tuple(text[-run:]), len(text))
            text.append(token)
