"""Log-probabilities of generated tokens, from the model's raw logits."""

from __future__ import annotations

import numpy as np
import torch

from paceline.records import Path, TokenLogprob
from paceline.tree import ROOT


def path_logprobs(logits: torch.Tensor, path: Path, top: int) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of a path's tokens, each with the `top` likeliest tokens in its place.

    logits: [nodes + 1, vocabulary], raw; row 0 belongs to the root and row i + 1 to node i.
    """
    rows = logits[[node + 1 for node in (ROOT, *path.nodes)]].float().cpu().numpy()
    rows -= rows.max(axis=-1, keepdims=True)
    logs = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return tuple(
        TokenLogprob(token, float(row[token]), _best(row, top))
        for token, row in zip(path.tokens, logs, strict=True)
    )


def _best(row: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """The largest of a row [vocabulary] with their tokens; of equal ones, lower ids first."""
    count = min(count, len(row))
    if not count:
        return ()
    # All numbers at least as large as the last one kept: ties are broken by id.
    least = np.partition(row, -count)[-count]
    tokens = np.flatnonzero(row >= least)
    best = tokens[np.argsort(-row[tokens], kind="stable")][:count]
    return tuple((int(token), float(row[token])) for token in best)
