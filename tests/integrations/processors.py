"""Logits processors for tests."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor


class Alternating(LogitsProcessor):
    """Stateful: forbids even tokens at every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 2:
            scores[:, ::2] = -torch.inf  # in place on purpose: callers may
        return scores
