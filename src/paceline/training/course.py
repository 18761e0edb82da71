"""The texts of some training data: to learn from, to judge by, and to evaluate on."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.training.data import TrainingData
from paceline.training.examples import Example, examples, split
from paceline.training.recipe import Recipe

__all__ = ["Course"]


@dataclass(frozen=True)
class Course:
    """Texts to learn from, and held back (one text is judged by and evaluated on where there is
    but one)."""

    learned: list[Example]
    held_back: list[Example]

    @classmethod
    def of(cls, data: TrainingData, distances: int, recipe: Recipe, fewest_points: int) -> Course:
        """Those with at least `fewest_points` places that have distances + 1 tokens behind them.

        Raises UsageError for damaged shards, or too few answers that are long enough.
        """
        found = examples(data, recipe.longest, distances, fewest_points)
        return cls(*split(found, recipe.held_back))

    @property
    def judged(self) -> list[Example]:
        """The held-back texts that decide which parts are the best."""
        return self.held_back[::2] if len(self.held_back) > 1 else self.held_back

    @property
    def evaluated(self) -> list[Example]:
        """The others, which decide on nothing: accuracy is measured on them."""
        return self.held_back[1::2] or self.held_back
