"""No guesses: the loop with this drafter is plain decoding, the reference for everything else."""

from __future__ import annotations

from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree


class Plain(Drafter):
    """Always proposes the empty tree."""

    passive = True

    def start(self, text: TextStart) -> None:
        """Nothing to prepare."""

    def propose(self, budget: int) -> Tree:
        """The empty tree."""
        return EMPTY

    def observe(self, round: Round) -> None:
        """Nothing to learn."""
