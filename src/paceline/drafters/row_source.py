"""Drafters that guess by rows of their own in the pass before, as sources of `auto`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from paceline.drafters.costly_sources import CostlySources
from paceline.protocols import Drafter
from paceline.records import Round
from paceline.tree import Tree

__all__ = ["RowSource", "RowSources"]


class RowSource(Drafter):
    """One whose guesses take next to no time, but rows that are never accepted and buy the guesses
    of the next round. Who unites sources decides when they are worth that."""

    @abstractmethod
    def add_rows(self, tree: Tree, most: int) -> Tree:
        """The tree with at most so many rows after its nodes and the root; as it is where they do
        not fit. Their weights are 0, and no source has proposed them."""


class RowSources:
    """Those of one text, and the rows that they had in the last pass.

    sources: by number; names: of all sources of their host. known: judges what they are worth.
    """

    def __init__(
        self, sources: Mapping[int, RowSource], names: Sequence[str], known: CostlySources
    ) -> None:
        self.sources, self._names, self._known = sources, names, known
        # By source: how sure the others were, and its rows.
        self._added: dict[int, tuple[float, int]] = {}
        # The same of the pass before, with the width of that.
        self._bought: dict[int, tuple[float, int, int]] = {}

    def begin(self) -> None:
        """A text begins or goes on elsewhere: nothing was bought for it."""
        self._added, self._bought = {}, {}

    def guessing(self) -> Iterator[tuple[int, RowSource]]:
        """Those that had rows in the last pass."""
        return ((place, self.sources[place]) for place in self._bought)

    def add_to(self, tree: Tree, sure: float, budget: int) -> tuple[Tree, list[int]]:
        """A tree of at most `budget` nodes, with rows of those sources whose next guesses are worth
        them; and which these are.

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
        """What the rows of the pass before have brought is known."""
        for place, (sure, rows, width) in self._bought.items():
            tokens, (_, claimed) = round.owed_to(place), round.rows_owed_to(place)
            self._known.judge(self._names[place], sure, tokens, claimed, width, rows)
        nodes = len(round.tree)  # without those that the end of the text has cut off
        self._bought = {
            place: (sure, min(rows, nodes), 1 + nodes)
            for place, (sure, rows) in self._added.items()
        }
        self._added = {}
