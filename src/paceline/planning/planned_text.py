"""What a planner knows about one text and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from paceline.planning.gate import Gate, Gates
from paceline.planning.sizing import MOST_WHOLE
from paceline.planning.text_calibration import TextCalibration
from paceline.protocols import SizedBy
from paceline.tree import Tree

__all__ = ["PlannedText"]


@dataclass
class PlannedText:
    """What is known about one text and its drafter."""

    sized_by: SizedBy
    calibration: TextCalibration
    gates: Gates
    budget: int | None = None
    gate: Gate = field(init=False)
    """That of the load in the round that is played."""
    asked: bool = False
    fresh: bool = True
    """The next round with the drafter is the first one, or the first of a trial: it may have
    something to build, and what it takes is not what drafts take."""
    usual: float = 2.0
    """Rows of a pass with a tree that stays whole."""
    used: float = 6.0
    """Nodes of trees that were scored, the largest of late."""
    promised: float | None = None
    """Tokens of the round that is played, by what came true of such guesses; None for trees that
    stay whole and say nothing about their nodes, of which some may be no guesses."""

    @property
    def nodes(self) -> int:
        """Of a tree that is scored though nothing comes of it; one that is sized node by node may
        still be cut to nothing."""
        return max(0, round(self.usual) - 1) if self.sized_by == "whole" else 0

    def gained(self, tokens: int) -> float:
        """What a round of so many tokens says about rounds to come.

        Most rounds gain nothing and some gain much, so a few of them say little. What their guesses
        promised, corrected by all earlier ones, says more, if nothing about what has changed just
        now: it counts half.
        """
        return tokens if self.promised is None else (tokens + self.promised) / 2

    def promise(self, tree: Tree, path_chances: Sequence[float]) -> float | None:
        """See `promised`. path_chances: of the nodes of the tree, of which those of weight 0 are no
        guesses."""
        if tree.weights is None:
            return None if self.sized_by == "whole" else 1 + sum(path_chances)
        return 1 + sum(compress(path_chances, tree.weights))

    def most(self, limit: int) -> int:
        """How many nodes to ask for: guesses that are cut off take time to make as well, so there
        are twice as many as were used of late."""
        return MOST_WHOLE if self.sized_by == "whole" else min(limit, 4 + round(2 * self.used))
