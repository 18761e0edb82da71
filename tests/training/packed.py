"""Texts packed into a window, as a method meets them, and a scorer that only listens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.tiny_models import new_model
from tests.training.shared import MODEL
from transformers import PreTrainedModel

from paceline.drafters.trained_parts import BaseModel
from paceline.targets.words import output_head
from paceline.training.batches import Batch
from paceline.training.dataset import Text
from paceline.training.method import Base


def base_for(model: PreTrainedModel, token_ids: torch.Tensor | None = None) -> Base:
    """A frozen target, with a text that it has learned from."""
    weight, bias = output_head(model.requires_grad_(False), token_ids)
    sizes = model.config
    about = BaseModel(MODEL, "toy", sizes.hidden_size, sizes.vocab_size)
    text = Text("t", (5, 9, 11), 0, 0, True)
    return Base(model, about, token_ids, (weight.clone(), bias.clone()), (text,))


def base_of(name: str = "llama", **changes: object) -> Base:
    """The same of a tiny random model."""
    return base_for(new_model(name, **changes))


@torch.no_grad()
def window_of(model: PreTrainedModel, texts: Sequence[Sequence[int]], padding: int = 3) -> Batch:
    """One window with these texts side by side, and what the model says after each token.

    Every position of a text is a place after which a token can be guessed.
    """
    found: dict[str, list[int]] = {name: [] for name in ("tokens", "text", "position", "start")}
    states, greedy = [], []
    for number, text in enumerate(texts):
        start = len(found["tokens"])
        found["tokens"] += text
        found["text"] += [number] * len(text)
        found["position"] += range(len(text))
        found["start"] += [start] * len(text)
        outputs = model(torch.tensor([list(text)]), output_hidden_states=True)
        states.append(outputs.hidden_states[-1][0])
        greedy += outputs.logits[0].argmax(dim=-1).tolist()
    states.append(torch.zeros(padding, states[0].shape[1]))
    for name, values in found.items():
        found[name] = values + [-1 if name == "text" else 0] * padding
    numbers = {name: torch.tensor([values]) for name, values in found.items()}
    text_of = numbers["text"]
    later = torch.nn.functional.pad(text_of[:, 2:], (0, 2), value=-1)
    return Batch(
        **numbers,
        states=torch.cat(states)[None, :, None],
        greedy=torch.tensor([greedy + [0] * padding]),
        source=text_of,
        place=(text_of >= 0) & (later == text_of),
        own=torch.ones(text_of.shape, dtype=torch.bool),
    )


class Noted:
    """A scorer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.penalties: list[torch.Tensor] = []

    def add(
        self,
        head: int,
        guesses: torch.Tensor,
        points: torch.Tensor,
        valid: torch.Tensor,
        as_logits: bool = False,
    ) -> None:
        assert head == len(self.told)
        self.told.append((guesses, points, valid))

    def penalty(self, term: torch.Tensor) -> None:
        self.penalties.append(term)
