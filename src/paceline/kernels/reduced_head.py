"""An output head that scores some tokens only."""

from __future__ import annotations

import math

import torch
from torch import nn


class ReducedHead(nn.Module):
    """Scores of some tokens; all others get -inf, like banned tokens in transformers.

    A small model's output head is as large as many layers, and most of its rows are for tokens that
    hardly ever occur: where such a token comes, a draft without it guesses wrong.

    rows: hidden -> scores of the tokens that can be generated; any stand-in may replace it.
    tokens: their ids [len(rows)], ascending. vocab_size: of the whole vocabulary.

    No processor, temperature or noise can bring -inf back: softmax makes it 0, and a draw with
    Gumbel noise never picks it. A model that caps its scores after the head (Gemma 2) turns it into
    the lowest possible score.
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
