"""What was done to a model so that its passes cost less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from paceline.kernels.memory import HugePages

__all__ = ["NATIVE", "Preparation"]

NATIVE = "native"
"""Weights of a model that was left alone."""

_WORTH_HUGE_PAGES = 64 << 20


@dataclass
class Preparation:
    """What was done to a model.

    weights: one of `WEIGHTS`, resolved, or "blocks": as the model was loaded, in those of its file;
    what has none is packed.
    linears: linear layers that run on them.
    products: how many products these are, fused ones counted once.
    norms: normalisations replaced.
    grouped_attention: whether keys and values are no longer copied per query head.
    plain_copy: whether a second copy for one-row passes was kept, and the times that decided it.
    left: reason -> how many layers stayed as they were.
    halves: bfloat16 or float16, where weights stay so and all else became float32; "" elsewhere.
    huge_pages: the move of the weights to them, which goes on in the background.
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
        """For reports."""
        values = {name: value for name, value in vars(self).items() if name != "huge_pages"}
        return values | {"left": dict(self.left)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], weight_bytes: int) -> Self:
        """What `as_json` said of a model of so many bytes. Raises TypeError for anything else."""
        return cls(**{**found, "left": Counter(found.get("left"))}).on_huge_pages(weight_bytes)

    def on_huge_pages(self, weight_bytes: int) -> Self:
        """Weights of so many bytes are in memory, and are moved to huge pages where that pays."""
        if weight_bytes >= _WORTH_HUGE_PAGES:
            self.huge_pages = HugePages()
        return self

    def settle(self) -> None:
        """Wait for what goes on in the background, so that measurements are not disturbed."""
        if self.huge_pages is not None:
            self.huge_pages.settle()
