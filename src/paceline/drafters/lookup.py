"""The bases of drafters that look up earlier text, and how likely what they find is to be right.

The constants are close to what n-grams and copies reached over recorded answers of thirteen kinds
(docs/planning.md). They only need to rank guesses: planners correct weights by what comes true.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from paceline.datastore import GrowingSuffixArray
from paceline.prefix import common_prefix
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import Tree

FOLLOWER_DOUBT = 3.0
_COPY_DOUBT = 5.0


def follower_confidence(run: int, seen: int, total: int) -> float:
    """The chance that a token follows a run of `run` tokens, as it did `seen` times of `total`, all
    at least 1: one sighting after one token says little, after four tokens much."""
    return seen / total * seen / (seen + FOLLOWER_DOUBT / run**2)


def copied_chain(tokens: Sequence[int], matched: int) -> Tree:
    """What followed elsewhere after the last `matched` tokens of the text, as a chain. If a token
    is right, the next is likelier than it was: the match is longer."""
    weights: list[float] = []
    path_chance = 1.0
    for length in range(matched, matched + len(tokens)):
        path_chance *= length**2 / (length**2 + _COPY_DOUBT)
        weights.append(path_chance)
    return Tree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(weights) or None)


class LookupDrafter(Drafter):
    """Drafts from known texts, so cheaply that it can be asked after guesses, too.

    While not asked, it may be told of a text by `resume` alone, later and many tokens at once.

    reads_text: whether it looks at the text itself. Two that do are not independent opinions.
    """

    reads_text: ClassVar[bool] = True

    def propose(self, budget: int) -> Tree:
        return self.propose_after((), budget)

    @property
    def knows_more(self) -> bool:
        """Whether it knows texts other than the one being written."""
        return True

    @abstractmethod
    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        """A tree of at most `budget` nodes, as if the text continued with the tokens of `path`.

        Weights are conditional on `path`: a first node's is its probability if `path` comes true.
        """


class TextReader(Drafter):
    """Reads a text as it grows; of one that continues the last, only what is new."""

    def __init__(self) -> None:
        self._text: list[int] = []

    def start(self, text: TextStart) -> None:
        """Read the context, except its common prefix with the last text."""
        self.resume(text)

    def resume(self, text: TextStart) -> None:
        """Take back what is no longer in the text, and read what is new."""
        known = common_prefix(self._text, text.context)
        if known < len(self._text):
            self._take_back(known)
            del self._text[known:]
        self._learn(text.context[known:])

    def observe(self, round: Round) -> None:
        """Read the committed tokens."""
        self._learn(round.path.tokens)

    def _learn(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._text += tokens

    def _take_back(self, known: int) -> None:
        """Forget what comes after the first `known` tokens of the text, which is cut later."""

    def _tail(self, path: Sequence[int], most: int) -> list[int]:
        """The last tokens of the text followed by `path`."""
        return [*self._text[-most:], *path][-most:]


class TextLookup(TextReader, LookupDrafter):
    """Looks up the end of a text in the text itself, whose positions are kept sorted by the tokens
    before them. A token taken back leaves no trace. Raises UsageError for ids that are negative or
    do not fit into 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self._own = GrowingSuffixArray()

    def _learn(self, tokens: Sequence[int]) -> None:
        if not self._own.whole or len(self._own) != len(self._text):  # it was interrupted
            self._own.take_back(0)
            self._own.add(self._text)
        self._own.add(tokens)
        super()._learn(tokens)

    def _take_back(self, known: int) -> None:
        self._own.take_back(known)
