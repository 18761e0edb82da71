"""Jacobi decoding (Santilli et al. 2023, "Accelerating Transformer Inference for Translation via
Parallel Decoding", arXiv 2305.10427, section 3).

The next tokens are unknowns of equations, each of which says that a token is the likeliest one
after those before it. They are solved as the Jacobi iteration does: all at once, each from what the
others were in the last pass. What is right at the beginning stays, and is accepted.

    text … a, guesses x y z: the rows of a x y z say b c d e
    x is not b, so b is accepted alone, and the next guesses are c d e
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline.drafters.settings import at_least
from paceline.protocols import Drafter, SizedBy
from paceline.records import Round, TextStart
from paceline.scores import likeliest
from paceline.tree import Tree

__all__ = ["Jacobi", "JacobiSettings"]


@dataclass(frozen=True)
class JacobiSettings:
    """Settings of `Jacobi`.

    length: tokens that are unknown at a time, >= 1.
    seed: of the tokens, drawn from the prompt, that unknowns are at first.

    Raises UsageError for a length out of range.
    """

    length: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, length=self.length)


class Jacobi(Drafter):
    """Guesses what the target said after the last guesses.

    settings, changes: see `JacobiSettings`; the latter are fields of it by name.

    Trees stay whole, because the rows of guesses that are wrong make the next ones. The iteration
    goes on after whatever is accepted, so there is no block that has to be solved to its end.
    """

    sized_by: SizedBy = "whole"

    def __init__(self, settings: JacobiSettings | None = None, **changes: Any) -> None:
        own = replace(settings or JacobiSettings(), **changes)
        self.length = own.length
        self._seed = own.seed
        self._random = Random(own.seed)  # noqa: S311 - no secret
        self._prompt: Sequence[int] = ()
        self._text: list[int] = []
        self._guesses: list[int] = []

    def start(self, text: TextStart) -> None:
        """Guess anything that the prompt holds. References are not looked at."""
        self._text = list(text.context)
        self._prompt = tuple(text.context)
        self._random = Random(self._seed)  # noqa: S311 - no secret
        self._guesses = self._filled([])

    def resume(self, text: TextStart) -> None:
        """Go on with other last tokens than those observed; what stood or was guessed after the
        new end stays a guess."""
        known = [*self._text, *self._guesses][len(text.context) :]
        self._text, self._guesses = list(text.context), self._filled(known)

    def propose(self, budget: int) -> Tree:
        """All guesses as a chain, or the first ones."""
        return Tree.chain(self._guesses[: max(0, budget)])

    def observe(self, round: Round) -> None:
        """Take the next guesses from the rows of the last ones; those without a row stay."""
        nodes = [round.tree.find(self._guesses[:count]) for count in range(1, self.length + 1)]
        rows = [node + 1 for node in nodes if node is not None]
        said = likeliest(round.logits[rows]) if rows else []
        guesses = [*self._guesses[:1], *said, *self._guesses[1 + len(said) :]]
        self._text += round.path.tokens
        self._guesses = self._filled(guesses[len(round.path.tokens) :])

    def _filled(self, known: Sequence[int]) -> list[int]:
        missing = self.length - len(known)
        return [*known[: self.length], *(self._random.choice(self._prompt) for _ in range(missing))]
