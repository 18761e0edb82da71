"""The likeliest tokens of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["likeliest"]

_SHORTEST = 4  # bytes of a number; numpy has no bfloat16


def likeliest(logits: torch.Tensor) -> list[int]:
    """The index of the largest of each row of floats [rows, vocabulary]; of equal ones the first.

    On a CPU numpy finds it ten times as fast as torch, where a wide tree would otherwise wait a
    millisecond for it.
    """
    if logits.device.type == "cpu" and logits.element_size() >= _SHORTEST:
        found: list[int] = logits.detach().numpy().argmax(axis=-1).tolist()
    else:
        found = logits.argmax(dim=-1).tolist()
    return found
