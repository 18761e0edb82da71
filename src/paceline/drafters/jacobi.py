"""Jacobi decoding (Santilli et al. 2023, "Accelerating Transformer Inference for Translation via
Parallel Decoding", arXiv 2305.10427, section 3).

The next tokens are the unknowns of a system of equations: each token is the likeliest one after
those before it. The Jacobi iteration solves all of them at once, each from the others' values in
the last pass. A right prefix stays, and is accepted.

    text … a, guesses x y z: the rows of a x y z say b c d e
    x is not b, so b is committed alone, and the next guesses are c d e
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline.drafters.settings import Settings, whole
from paceline.protocols import Drafter, SizedBy
from paceline.records import Round, TextStart
from paceline.scores import likeliest
from paceline.tree import Tree


@dataclass(frozen=True)
class JacobiSettings(Settings):
    """Settings of `Jacobi`.

    length: unknown tokens at a time, 1 to 1024.
    seed: of the first guesses, which are drawn from the prompt.
    """

    length: int = whole(8, 1, 1024)
    seed: int = 0


class Jacobi(Drafter):
    """Guesses what the target said after the last guesses.

    Trees stay whole, because the rows of wrong guesses make the next ones. The iteration continues
    after whatever is accepted, so no block has to be solved to its end.
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
        """Guess random tokens of the prompt. References are ignored."""
        self._text = list(text.context)
        self._prompt = tuple(text.context)
        self._random.seed(self._seed)
        self._guesses = self._filled([])

    def resume(self, text: TextStart) -> None:
        """Continue with other last tokens; tokens and guesses after the new end stay guesses."""
        known = [*self._text, *self._guesses][len(text.context) :]
        self._text, self._guesses = list(text.context), self._filled(known)

    def propose(self, budget: int) -> Tree:
        """The guesses as a chain, as many as fit."""
        return Tree.chain(self._guesses[: max(0, budget)])

    def observe(self, round: Round) -> None:
        """Take the next guesses from the rows of the last ones; those without a row stay."""
        rows = [node + 1 for node in round.tree.along(self._guesses)]
        said = likeliest(round.logits[rows]) if rows else []
        guesses = [*self._guesses[:1], *said, *self._guesses[1 + len(said) :]]
        self._text += round.path.tokens
        self._guesses = self._filled(guesses[len(round.path.tokens) :])

    def _filled(self, known: Sequence[int]) -> list[int]:
        missing = self.length - len(known)
        return [*known[: self.length], *(self._random.choice(self._prompt) for _ in range(missing))]
