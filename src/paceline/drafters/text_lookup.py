"""The base of drafters that look up the end of a text in the text itself."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.datastore import LONGEST, GrowingSuffixArray
from paceline.drafters.lookup import LookupDrafter
from paceline.prefix import common_prefix
from paceline.records import Round, TextStart

__all__ = ["TextLookup"]


class TextLookup(LookupDrafter):
    """Keeps the text's positions sorted by the tokens before them.

    Adding a token takes a microsecond. A token taken back leaves no trace.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._own = GrowingSuffixArray()

    def start(self, text: TextStart) -> None:
        """Add the context, except its common prefix with the last text."""
        self.resume(text)

    def resume(self, text: TextStart) -> None:
        """Take back what is no longer in the text, and add what is new."""
        known = common_prefix(self._text, text.context)
        if known < len(self._text):
            del self._text[known:]
            self._own.take_back(known)
        self._learn(text.context[known:])

    def observe(self, round: Round) -> None:
        """Add the committed tokens."""
        self._learn(round.path.tokens)

    def _learn(self, tokens: Sequence[int]) -> None:
        self._own.add(tokens)
        self._text += tokens

    def _tail(self, path: Sequence[int]) -> list[int]:
        """The last tokens of the text followed by `path`, as many as are looked up."""
        return [*self._text[-LONGEST:], *path][-LONGEST:]
