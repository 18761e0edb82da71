"""Chimera's n-gram encoder (section 4.1.1): turns a text's last tokens into a green state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["Embed", "NgramEncoder", "ngram_places", "ngrams"]

Embed = Callable[[torch.Tensor], torch.Tensor]
"""Token ids int64 [...] -> the target's embeddings [..., hidden]."""


def ngrams(tokens: torch.Tensor, order: int, start: torch.Tensor | None = None) -> torch.Tensor:
    """[batch, length, order] int64: the n-gram that ends at each place of texts [batch, length].

    start: [batch, length] int64, where the text of each place begins; None: all at 0.

    If a text has fewer tokens, the last one is repeated: the trigrams of a, b, c are a a a, a b b,
    a b c (as in the official code).
    """
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    begins = torch.zeros_like(places) if start is None else start
    wanted = ngram_places(places, order, begins)
    return tokens.gather(1, wanted.flatten(1)).view_as(wanted)


def ngram_places(places: torch.Tensor, order: int, start: torch.Tensor) -> torch.Tensor:
    """[...] int64 -> [..., order]: the places of the tokens of the n-gram that ends there."""
    first = torch.maximum(places - order + 1, start)[..., None]
    steps = torch.arange(order, device=places.device)
    return torch.minimum(first + steps, places[..., None])


class NgramEncoder(nn.Module):
    """A residual block and a linear layer on the embeddings of `order` tokens (section 4.1.1).

    embed: the target's embeddings, frozen. rank: see `ChimeraConfig`.

    Parameters: "block.weight" [order * hidden, order * hidden] and "block.bias", which start at
    zero; "down.weight" [hidden, order * hidden]. With a rank, "narrow.weight" [rank, order *
    hidden] precedes the block, which is [order * hidden, rank].
    """

    def __init__(self, order: int, hidden: int, embed: Embed, rank: int = 0) -> None:
        super().__init__()
        self.order = order
        self._embed = (embed,)  # a tuple keeps it out of the module's own parts
        width = order * hidden
        self.narrow = nn.Linear(width, rank, bias=False) if rank else None
        self.block = nn.Linear(rank or width, width)
        nn.init.zeros_(self.block.weight)
        nn.init.zeros_(self.block.bias)
        self.down = nn.Linear(order * hidden, hidden, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """n-grams int64 [..., order] -> green states [..., hidden]."""
        words = self.embeddings(ids).flatten(-2).float()
        narrow = words if self.narrow is None else self.narrow(words)
        states: torch.Tensor = self.down(words + F.silu(self.block(narrow)))
        return states

    def embeddings(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [...] -> their embeddings [..., hidden]."""
        return self._embed[0](ids)

    def whole(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Texts int64 [batch, length] -> the green states [batch, length, hidden] of all places.

        start: see `ngrams`."""
        found: torch.Tensor = self(ngrams(tokens, self.order, start))
        return found
