"""The planner that plans nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.protocols import Drafter, Propose
from paceline.records import Round
from paceline.tree import Tree

__all__ = ["DEFAULT_BUDGET", "FixedBudget"]

DEFAULT_BUDGET = 64

# Prompt tokens read in a pass with other texts, as the cost of a row is unknown.
_PREFILL_BESIDE = 32


@dataclass(frozen=True)
class FixedBudget:
    """The planner that plans nothing: at most `budget` nodes in every round."""

    budget: int

    def add(self, key: int, drafter: Drafter, budget: int | None = None) -> None:
        """Nothing to prepare."""

    def drop(self, key: int) -> None:
        """Nothing to forget."""

    def plan(self, proposals: Mapping[int, Propose]) -> dict[int, Tree]:
        """Whatever the drafters propose."""
        return {key: propose(self.budget) for key, propose in proposals.items()}

    def prefill(self, rows: int, texts: int, tokens: int) -> int:
        """A few tens of tokens."""
        return _PREFILL_BESIDE

    def observe(self, rounds: Sequence[Round]) -> None:
        """Nothing to learn."""
