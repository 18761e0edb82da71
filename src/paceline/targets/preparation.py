"""What was done to a model to make its passes cheaper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from paceline.kernels.memory import HugePages

__all__ = ["NATIVE", "Preparation"]

NATIVE = "native"
"""Weights of an unchanged model."""

_WORTH_HUGE_PAGES = 64 << 20


@dataclass
class Preparation:
    """What was done to a model.

    weights: one of `WEIGHTS`, resolved, or "blocks": as loaded, in the blocks of the model's file;
    layers without blocks are packed.
    linears: linear layers that run on these weights.
    products: how many products these are, fused ones counted once.
    norms: normalisations replaced.
    grouped_attention: whether keys and values are no longer copied per query head.
    plain_copy: whether a second copy for one-row passes was kept, and the times that decided it.
    left: reason -> how many layers were left unchanged.
    halves: bfloat16 or float16, if weights keep that format and all else became float32; else "".
    huge_pages: the background move of the weights to huge pages.
    """

    weights: str = NATIVE
    linears: int = 0
    products: int = 0
    norms: int = 0
    grouped_attention: bool = False
    plain_copy: str = ""
    left: Counter[str] = field(default_factory=Counter)
    halves: str = ""
    huge_pages: HugePages | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the preparation for reports."""
        values = {name: value for name, value in vars(self).items() if name != "huge_pages"}
        return values | {"left": dict(self.left)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], weight_bytes: int) -> Self:
        """Invert `as_json`, for a model of so many bytes. Raises TypeError for anything else."""
        return cls(**{**found, "left": Counter(found.get("left"))}).on_huge_pages(weight_bytes)

    def on_huge_pages(self, weight_bytes: int) -> Self:
        """Start moving weights of `weight_bytes` bytes to huge pages, if that pays."""
        if weight_bytes >= _WORTH_HUGE_PAGES:
            self.huge_pages = HugePages()
        return self

    def settle(self) -> None:
        """Wait for background work, so that it does not disturb measurements."""
        if self.huge_pages is not None:
            self.huge_pages.settle()
