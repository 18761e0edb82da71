"""What a planner knows about one text and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from paceline.planning.gate import Gate, Gates
from paceline.planning.sizing import MOST_WHOLE, Used
from paceline.planning.text_calibration import TextCalibration
from paceline.protocols import SizedBy
from paceline.tree import Tree


@dataclass
class PlannedText:
    """What is known about one text and its drafter."""

    sized_by: SizedBy
    calibration: TextCalibration
    gates: Gates
    budget: int | None = None
    united: bool = False
    """Whether several sources propose the nodes."""
    gate: Gate = field(init=False)
    """The gate for the current round's load."""
    asked: bool = False
    fresh: bool = True
    """The next round with the drafter is its first with guesses, or the first of a trial: it may
    have something to read or build, so its time is not typical."""
    usual: float = 2.0
    """Rows of a pass with a tree that stays whole."""
    used: Used = field(default_factory=Used)
    promised: float | None = None
    """Expected tokens of the current round, by how often such guesses came true; None for trees
    that stay whole and have no weights, since some of their nodes may not be guesses."""

    @property
    def nodes(self) -> int:
        """Nodes scored even if useless; a tree that is sized node by node can be cut to nothing."""
        return round(self.usual) - 1 if self.sized_by == "whole" else 0

    def gained(self, tokens: int) -> float:
        """What a round that gained `tokens` says about future rounds.

        Most rounds gain nothing and some gain much, so a few of them say little. What their guesses
        promised, corrected by all earlier ones, says more, but nothing about recent changes: it
        counts half.
        """
        return tokens if self.promised is None else (tokens + self.promised) / 2

    def promise(self, tree: Tree, path_chances: Sequence[float]) -> float | None:
        """See `promised`. path_chances: of the tree's nodes; those of weight 0 are no guesses."""
        if tree.weights is None:
            return None if self.sized_by == "whole" else 1 + sum(path_chances)
        return 1 + sum(compress(path_chances, tree.weights))

    def most(self, limit: int) -> int:
        """How many nodes to ask for. If several sources propose them, all that there are: which of
        these to trust is known only here. What each is asked for is limited there."""
        if self.sized_by == "whole":
            return MOST_WHOLE
        return limit if self.united else min(limit, self.used.enough)
