"""What was done to a model to make its passes cheaper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

NATIVE = "native"
"""Weights of an unchanged model."""


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
    """

    weights: str = NATIVE
    linears: int = 0
    products: int = 0
    norms: int = 0
    grouped_attention: bool = False
    plain_copy: str = ""
    left: Counter[str] = field(default_factory=Counter)
    halves: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the preparation for reports."""
        return {**vars(self), "left": dict(self.left)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Invert `as_json`. Raises TypeError for anything else."""
        return cls(**{**found, "left": Counter(found.get("left"))})
