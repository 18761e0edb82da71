"""The frozen model reads a batch of its own texts: what prompt tokens look at, and learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from paceline.training.examples import Assignment

__all__ = ["Lesson", "Teacher"]


@dataclass(frozen=True)
class Lesson:
    """A batch of texts, read by the frozen model.

    points: [batch, n] int64, where prompt tokens are put in; see `Insertion`.
    layers: keys and values per layer, each [batch, KV heads, length, head size].
    scores: [batch, n, distances, vocabulary] logits at the places that the prompt tokens guess.
    tokens: [batch, n, distances] int64, what the text says there.
    """

    points: torch.Tensor
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    scores: torch.Tensor
    tokens: torch.Tensor

    @property
    def length(self) -> int:
        """Slots of the texts, the shorter ones padded."""
        return self.layers[0][0].shape[2]


class Teacher:
    """The model whose prompt tokens are trained; its own parameters never change."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def read(self, assignment: Assignment, distances: int) -> Lesson:
        """Read texts together, and look at the scores behind the points.

        assignment: as many points in each text; behind each there are at least distances + 1
        tokens more.
        """
        texts, points = assignment.texts, assignment.points
        device = self.model.get_input_embeddings().weight.device
        longest = max(map(len, texts))
        # Behind a text comes padding, which nothing before it can see.
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        where = torch.tensor([list(each) for each in points])
        guessed = where[:, :, None] + 1 + torch.arange(distances)
        keep = torch.unique(guessed)
        cache = DynamicCache()
        logits = self.model(
            ids.to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep.to(device),
        ).logits
        rows = torch.searchsorted(keep, guessed.flatten(1)).to(device)
        texts_of_rows = torch.arange(len(texts), device=device)[:, None]
        scores = logits[texts_of_rows, rows].view(*guessed.shape, -1)
        says = torch.gather(ids, 1, (guessed + 1).flatten(1)).view_as(guessed)
        layers = tuple((layer.keys, layer.values) for layer in cache.layers)
        return Lesson(where, layers, scores, says.to(device))
