"""Texts of one target that are scored together in every pass, by their places in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.protocols import Target
from paceline.records import Path
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import Tree

Trees = Mapping[int, Tree] | Sequence[Tree]
Paths = Mapping[int, Path] | Sequence[Path]


class InStep:
    """A target, and besides: `sync` closes all texts and opens others in their place, and `score`
    and `commit` take lists in that order."""

    def __init__(self, target: Target) -> None:
        self.own = target
        self.slots: list[int] = []

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        for slot in self.slots:
            self.own.close(slot)
        self.slots = [self.own.open(context) for context in contexts]

    def score(self, trees: Trees, prefill: Mapping[int, int] | None = None) -> Any:
        if isinstance(trees, Mapping):
            return self.own.score(trees, prefill)
        rows = self.own.score(dict(zip(self.slots, trees, strict=True)))
        return [rows[slot] for slot in self.slots]

    def commit(self, paths: Paths) -> None:
        if not isinstance(paths, Mapping):
            paths = dict(zip(self.slots, paths, strict=True))
        self.own.commit(paths)

    @property
    def graphs(self) -> Any:
        return self.own.describe().report["graphs"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def new_target(*args: Any, **options: Any) -> Any:
    """A `CausalLMTarget` with all that."""
    return InStep(CausalLMTarget(*args, **options))
