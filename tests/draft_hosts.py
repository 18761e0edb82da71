"""Draft models for tests: toys by name, on a clock that ticks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch

from paceline.drafters import Host, ModelChoice, Opener
from paceline.protocols import Target
from paceline.targets.toy import ToyTarget
from paceline.tree import Tree

TOY = "toy"
"""Fingerprint of the models in memory."""


class Ticking:
    """A clock that is a step further on whenever it is asked."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return next(self._ticks) * self._step


class Mumbling(ToyTarget):
    """A toy that cannot say every third token: its logits are -inf."""

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        silent = torch.arange(self.vocab_size) % 3 == 0
        return {
            slot: rows.masked_fill(silent, -torch.inf)
            for slot, rows in super().score(trees, prefill).items()
        }


TOYS: dict[str, Callable[[], Target]] = {
    "twin": ToyTarget,  # of the toy that is decoded by default
    "near": lambda: ToyTarget(sharpness=3.0),  # another temperature, so to say
    "stranger": lambda: ToyTarget(seed=9),
    "padded": lambda: ToyTarget(vocab_size=23),  # its first 16 logits are the twin's
    "narrow": lambda: ToyTarget(vocab_size=11),
    "short": lambda: ToyTarget(max_context=20),
    "mumbling": Mumbling,
}


def toy_opener(step: float) -> Opener:
    """Opens the toys, whose passes take so many seconds as their clock sees it; the models that
    draft for them are faster still."""

    def open_toy(choice: ModelChoice) -> Host:
        clock = Ticking(step)
        return Host(TOYS[choice.model](), TOY, tokens=16, open=toy_opener(step / 100), clock=clock)

    return open_toy


def toy_host(target: Target | None = None) -> Host:
    """A toy to draft for, with the toys above as its draft models."""
    return Host(target or ToyTarget(), TOY, open=toy_opener(1e-5), clock=Ticking(1e-3))
