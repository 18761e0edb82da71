"""Log-probabilities of what was said, by the model's own word."""

from __future__ import annotations

import numpy as np
import torch

from paceline.records import Path, TokenLogprob
from paceline.tree import ROOT

__all__ = ["path_logprobs"]


def path_logprobs(logits: torch.Tensor, path: Path, top: int) -> tuple[TokenLogprob, ...]:
    """Of each token of a path, with the `top` likeliest tokens at its place.

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
    """The largest of a row [vocabulary] with their tokens, the first of equal ones first."""
    count = min(count, len(row))
    if not count:
        return ()
    # All that are no less than the last one, as equal ones are told apart by their ids.
    least = np.partition(row, -count)[-count]
    tokens = np.flatnonzero(row >= least)
    best = tokens[np.argsort(-row[tokens], kind="stable")][:count]
    return tuple((int(token), float(row[token])) for token in best)
