"""The base of drafters that look up earlier text: they can be asked after any guess."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from paceline.protocols import Drafter
from paceline.tree import Tree

__all__ = ["LookupDrafter"]


class LookupDrafter(Drafter):
    """Drafts from known texts, so cheaply that it can be asked after guesses, too.

    While not asked, it may be told of a text by `resume` alone, later and many tokens at once.

    reads_text: whether it looks at the text itself. Two that do are not independent opinions.
    """

    reads_text: ClassVar[bool] = True

    def propose(self, budget: int) -> Tree:
        """See `Drafter.propose`."""
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
