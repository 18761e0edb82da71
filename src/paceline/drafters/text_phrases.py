"""Phrases from a text as it grows, and from drafts after it.

size 2, text a b c, draft d e:   a -> (b, c)   from the text
                                 b -> (c, d), c -> (d, e)   from the draft
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.phrases import PhrasePool

__all__ = ["TextPhrases"]


class TextPhrases:
    """Puts the phrases of a text into a pool.

    size: tokens of a phrase, >= 1; its key is the token before them.
    """

    def __init__(self, pool: PhrasePool, size: int) -> None:
        self._pool = pool
        self._size = size
        self._tail: list[int] = []  # of the text: where the next phrases may begin

    def begin(self, context: Sequence[int], learn: bool) -> None:
        """A text begins, or continues with other last tokens.

        learn: put its phrases into the pool.
        """
        self._tail = []
        if learn:
            self.drafted(context)
        self._tail = list(context[-self._size :])

    def said(self, tokens: Sequence[int]) -> None:
        """The text continues with these."""
        self.drafted(tokens)
        self._tail = [*self._tail, *tokens][-self._size :]

    def drafted(self, tokens: Sequence[int]) -> None:
        """A draft continues with these."""
        whole = [*self._tail, *tokens]
        for end in range(max(len(self._tail), self._size) + 1, len(whole) + 1):
            key, *phrase = whole[end - self._size - 1 : end]
            self._pool.add(key, phrase)
