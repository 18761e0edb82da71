"""An output head that scores some tokens of a vocabulary, in the place of a whole one.

For a small model the output head is as large as many layers, and most of its rows are for tokens
that a text hardly ever holds. A draft model may do without these: what it cannot say, it guesses
wrong.
"""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["ReducedHead"]


class ReducedHead(nn.Module):
    """Scores of some tokens; all others have -inf, as banned tokens have it in transformers.

    rows: hidden -> scores of the tokens that can be said. A plain linear layer, which may be
    replaced by any stand-in for one.
    tokens: their ids [len(rows)], ascending.
    vocab_size: of the whole vocabulary.

    -inf is what no processor, temperature or noise can bring back: softmax gives it 0, and a draw
    with Gumbel noise never takes it. A model that caps its scores after the head (Gemma 2) makes the
    lowest of it that there is.
    """

    tokens: torch.Tensor

    def __init__(self, rows: nn.Linear, tokens: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        self.rows: nn.Module = rows
        self.register_buffer("tokens", tokens.to(torch.int64), persistent=False)
        self.vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., vocab_size]."""
        said: torch.Tensor = self.rows(hidden)
        scores = said.new_full((*said.shape[:-1], self.vocab_size), -math.inf)
        return scores.index_copy_(-1, self.tokens, said)
