"""No guesses: the loop with this drafter is plain decoding, the reference for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.protocols import SizedBy
from paceline.records import Round
from paceline.tree import EMPTY, Tree

if TYPE_CHECKING:
    from paceline.sampling import Sampler

__all__ = ["Plain"]


class Plain:
    """Always proposes the empty tree."""

    requires: frozenset[str] = frozenset()
    sized_by: SizedBy = "nodes"

    def start(
        self,
        context: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        sampler: Sampler | None = None,
    ) -> None:
        """Nothing to prepare."""

    def propose(self, budget: int) -> Tree:
        """The empty tree."""
        return EMPTY

    def observe(self, round: Round) -> None:
        """Nothing to learn."""
