"""A single pass over one text, without the loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.protocols import Target
from paceline.tree import EMPTY, Tree


def one_pass(target: Target, text: Sequence[int], tree: Tree = EMPTY) -> torch.Tensor:
    """Logits [len(tree) + 1, vocab_size] after `text`, of which nothing stays open."""
    slot = target.open(text)
    rows = target.score({slot: tree})[slot]
    target.close(slot)
    return rows
