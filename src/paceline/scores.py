"""Token scores, and the likeliest tokens of a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import ModelError, UsageError

_SHORTEST = 4  # bytes of a number; numpy has no bfloat16

Ranked = list[tuple[int, float]]
"""Tokens with their shares in a softmax, largest first."""


@dataclass(frozen=True)
class TokenScores:
    """Scores of the tokens that may come next.

    numbers: [n], raw logits in float32, or scores made from them. tokens: [n] int64, their ids,
    ascending, when all other tokens have -inf; None if number i belongs to token i.
    """

    numbers: NDArray[np.floating[Any]]
    tokens: NDArray[np.int64] | None = None

    def token(self, place: int) -> int:
        """The id of the token at `place` in `numbers`."""
        return place if self.tokens is None else int(self.tokens[place])


class NothingAllowedError(UsageError):
    """No token may be drawn: all scores are -inf."""


def check_drawn(score: float) -> None:
    """Check the score with which a token was drawn, the largest of all.

    Raises ModelError if it is NaN, and NothingAllowedError if it is -inf.
    """
    if score > -math.inf:
        return
    if math.isnan(score):
        raise ModelError(
            "scores of the next token are NaN: load the model in float32, or check its weights and "
            "the processors"
        )
    raise NothingAllowedError(
        "every token has the score -inf: relax the processors or the constraint"
    )


def choices(
    logits: torch.Tensor, check: Callable[[float], None] = check_drawn
) -> Callable[[int], int]:
    """Row of [rows, vocabulary] -> the index of its largest number, which is checked. On a CPU a
    row is read only when asked for: few rows of a tree are."""
    if logits.device.type == "cpu" and logits.element_size() >= _SHORTEST:
        numbers = (logits.detach() if logits.requires_grad else logits).numpy()

        def choose(row: int) -> int:
            token = int(numbers[row].argmax())
            check(numbers[row, token])
            return token

        return choose
    found = logits.max(dim=-1)
    return checked(found.values.tolist(), found.indices.tolist(), check)


def checked(
    scores: Sequence[float], tokens: Sequence[int], check: Callable[[float], None] = check_drawn
) -> Callable[[int], int]:
    """Row -> the token drawn from it, whose score is checked."""

    def choose(row: int) -> int:
        check(scores[row])
        return tokens[row]

    return choose


def likeliest(logits: torch.Tensor) -> list[int]:
    """The index of the largest of each row of floats [rows, vocabulary]; the first of equal ones.

    On a CPU numpy is ten times as fast as torch, which takes a millisecond for a wide tree.
    """
    if logits.device.type == "cpu" and logits.element_size() >= _SHORTEST:
        found: list[int] = logits.detach().numpy().argmax(axis=-1).tolist()
    else:
        found = logits.argmax(dim=-1).tolist()
    return found
