"""What heads guess: the likeliest tokens, and how likely they say these are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.likeliest import likeliest

__all__ = ["Guesses", "guesses_of", "likeliest_guesses"]


@dataclass(frozen=True)
class Guesses:
    """The likeliest tokens of some rows of logits, likeliest first.

    tokens: one list per row. probabilities: of the same tokens, by the heads themselves; the shares
    of a row add up to at most 1.
    """

    tokens: list[list[int]]
    probabilities: tuple[tuple[float, ...], ...]


def guesses_of(logits: torch.Tensor, ranks: int, token_ids: torch.Tensor | None) -> Guesses:
    """The `ranks` likeliest tokens of each row, fewer where there are fewer columns.

    logits: [rows, outputs]. token_ids: [outputs] int64, the tokens that columns stand for; None:
    columns are token ids.
    """
    best = logits.float().softmax(dim=-1).topk(min(ranks, logits.shape[-1]), dim=-1)
    places = best.indices if token_ids is None else token_ids[best.indices]
    shares = best.values.double()
    # Rounding may make a row a little more than 1.
    shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return Guesses(places.tolist(), tuple(map(tuple, shares.tolist())))


def likeliest_guesses(
    logits: NDArray[np.float32], ranks: int, token_ids: torch.Tensor | None
) -> Guesses:
    """The same on a CPU, in one call."""
    places, shares = likeliest(logits, ranks)
    tokens = places if token_ids is None else token_ids.numpy()[places]
    wide = shares.astype(np.float64)
    wide /= np.maximum(wide.sum(axis=1, keepdims=True), 1.0)
    return Guesses(tokens.tolist(), tuple(map(tuple, wide.tolist())))
