"""Trees that grow level by level, from the likeliest nodes of the level before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.drafters.guesses import Guesses
from paceline.drafters.head_configs import HeadWeights
from paceline.drafters.parts import PartsSettings
from paceline.drafters.settings import MOST_RANKS, whole
from paceline.errors import UsageError
from paceline.tree import ROOT


@dataclass(frozen=True)
class BeamSettings(PartsSettings):
    """How trees grow by trained parts, and the settings of `PartsSettings`.

    depth: levels of a tree; 0 for as many as pay, see `DraftLength`.
    ranks: guesses to consider after each node.
    beam: most nodes of each level to continue from, 1 to 256; 1 gives one chain with runners-up.
    least: nodes that are less likely to be accepted are not continued, nor are those whose
    followers would not be worth a row, see `ChainEnd.worth`.
    context: most tokens of a prompt to read, the last ones; 0 for all.
    weights: of the linear layers, see `HeadWeights`.
    """

    depth: int = whole(0, 0)
    ranks: int = whole(10, 1, MOST_RANKS)
    beam: int = whole(2, 1, 256)  # memory for the logits of so many rows is kept
    least: float = 0.02
    context: int = whole(384, 0)
    weights: HeadWeights = "fastest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.least <= 1:
            raise UsageError(f"least must be a number from 0 to 1, got {self.least!r}")


class LevelTree:
    """Guesses by number, in the order they were added.

    tokens, parents: as in `Tree`. path_chances: the product of the drafter's probabilities up to
    each. `chimera.c` and `eagle.c` do the same.
    """

    def __init__(self) -> None:
        self.tokens = list[int]()
        self.parents = list[int]()
        self.path_chances = list[float]()
        self._first = 0  # of the last level

    def add(self, level: Sequence[int], guesses: Guesses) -> None:
        """Add a level: guesses after these nodes; the first level is after `ROOT` alone."""
        self._first = len(self.tokens)
        rows = zip(level, guesses.tokens, guesses.probabilities, strict=True)
        for node, own, shares in rows:
            sure = 1.0 if node == ROOT else self.path_chances[node]
            self.tokens += own
            self.parents += [node] * len(own)
            self.path_chances += [sure * share for share in shares]

    def likeliest(self, beam: int, least: float) -> list[int]:
        """The `beam` likeliest nodes of the last level, except those less likely than `least`; ties
        go to the first."""
        chances, level = self.path_chances, range(self._first, len(self.tokens))
        best = sorted(level, key=lambda node: -chances[node])[:beam]
        return sorted(node for node in best if chances[node] >= least)
