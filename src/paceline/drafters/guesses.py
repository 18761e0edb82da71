"""What heads guess: the likeliest tokens, with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.kernels.programs.builder import GivenRows

__all__ = ["Guesses", "as_guesses", "guesses_of", "guesses_of_program", "likeliest"]


@dataclass(frozen=True)
class Guesses:
    """The likeliest tokens of some rows of logits, likeliest first.

    tokens: one list per row. probabilities: of the same tokens, by the heads themselves; those of a
    row add up to at most 1.
    """

    tokens: list[list[int]]
    probabilities: tuple[tuple[float, ...], ...]


def guesses_of(
    logits: torch.Tensor,
    ranks: int,
    token_ids: torch.Tensor | None,
    noise: torch.Tensor | None = None,
) -> Guesses:
    """The `ranks` likeliest tokens of each row, fewer where there are fewer columns; see
    `likeliest`."""
    return as_guesses(likeliest(logits, ranks, token_ids, noise))


def likeliest(
    logits: torch.Tensor,
    ranks: int,
    token_ids: torch.Tensor | None,
    noise: torch.Tensor | None = None,
) -> torch.Tensor:
    """Tokens and shares of the `ranks` likeliest columns of each row: float64 [2, rows, ranks], as
    doubles hold any token id and come from a GPU in one transfer.

    logits: [rows, outputs]. token_ids: [outputs] int64, the tokens that columns stand for; None:
    columns are token ids. noise: of the target's draw, one row for all or one for each.
    """
    logits = logits if noise is None else logits.float() + noise
    best = logits.float().softmax(dim=-1).topk(min(ranks, logits.shape[-1]), dim=-1)
    places = best.indices if token_ids is None else token_ids[best.indices]
    # What cannot be computed is no guess, as in the library.
    shares = best.values.double().nan_to_num()
    # Rounding may push a row's sum slightly above 1.
    shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return torch.stack([places.double(), shares])


def as_guesses(found: torch.Tensor) -> Guesses:
    """Fetch what `likeliest` has found; a GPU is waited for."""
    ids, shares = found.tolist()
    return Guesses([[int(token) for token in row] for row in ids], tuple(map(tuple, shares)))


def guesses_of_program(
    program: GivenRows,
    rows: int,
    ranks: int,
    token_ids: Sequence[int] | None,
    noise: torch.Tensor | None = None,
) -> Guesses:
    """The same for `rows` rows that a program has just run, in one call. token_ids: as a list."""
    if noise is not None:
        program.out(rows)[:] += noise.numpy()
    tokens, shares = program.likeliest(rows, ranks)
    if token_ids is not None:
        tokens = [[token_ids[place] for place in row] for row in tokens]
    return Guesses(tokens, tuple(map(_at_most_one, shares)))


def _at_most_one(shares: list[float]) -> tuple[float, ...]:
    total = sum(shares)
    return tuple(shares) if total <= 1.0 else tuple(share / total for share in shares)
