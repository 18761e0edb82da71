"""Drafters that guess by their own rows in the previous pass, as sources of `auto`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from paceline.drafters.costly_sources import CostlySources
from paceline.protocols import Drafter
from paceline.records import Round
from paceline.tree import Tree

__all__ = ["RowSource", "RowSources"]


class RowSource(Drafter):
    """A source whose guesses need rows in the pass before, which are never accepted, and almost no
    time. The drafter that unites sources decides when they are worth that."""

    @abstractmethod
    def add_rows(self, tree: Tree, most: int) -> Tree:
        """Add at most `most` rows after the root and nodes of the tree; return it unchanged if they
        do not fit. Their weights are 0, and no source has proposed them."""


class RowSources:
    """The row sources of one text, by number. names: of all sources. known: judges their worth."""

    def __init__(
        self, sources: Mapping[int, RowSource], names: Sequence[str], known: CostlySources
    ) -> None:
        self.sources, self._names, self._known = sources, names, known
        # By source: `sure` when it was asked, and its rows.
        self._added: dict[int, tuple[float, int]] = {}
        # The same for the pass before, and that pass's width.
        self._bought: dict[int, tuple[float, int, int]] = {}

    def begin(self) -> None:
        """A text begins, or resumes elsewhere: it has no rows yet."""
        self._added, self._bought = {}, {}

    def guessing(self) -> Iterator[tuple[int, RowSource]]:
        """The sources that had rows in the last pass."""
        return ((place, self.sources[place]) for place in self._bought)

    def add_to(self, tree: Tree, sure: float, budget: int) -> tuple[Tree, list[int]]:
        """A tree of at most `budget` nodes, with rows of the sources whose next guesses are worth
        them; and the numbers of these sources.

        sure: see `CostlySources.asks`.
        """
        for place, source in self.sources.items():
            if self._known.asks(self._names[place], sure):
                wider = source.add_rows(tree, budget - len(tree))
                if len(wider) > len(tree):
                    self._added[place] = sure, len(wider) - len(tree)
                    tree = wider
        return tree, list(self._added)

    def judge(self, round: Round) -> None:
        """Judge what the rows of the pass before have gained."""
        for place, (sure, rows, width) in self._bought.items():
            tokens, (_, claimed) = round.owed_to(place), round.rows_owed_to(place)
            self._known.judge(self._names[place], sure, tokens, claimed, width, rows)
        nodes = len(round.tree)  # without those cut off by the end of the text
        self._bought = {
            place: (sure, min(rows, nodes), 1 + nodes)
            for place, (sure, rows) in self._added.items()
        }
        self._added = {}
