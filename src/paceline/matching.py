"""What a constraint lets a text say: the contract of whoever knows it."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Matcher"]


class Matcher(Protocol):
    """One text's place in what it is held to, e.g. a grammar.

    Whatever goes wrong in it is raised, and ends that text alone.
    """

    def copy(self) -> Matcher:
        """Another one at the same place."""
        ...

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next, bool [vocabulary] on the CPU; at least one."""
        ...

    def push(self, token: int) -> bool:
        """A token was drawn; True where the text is complete and nothing can follow it."""
        ...

    def forced(self) -> list[int]:
        """The tokens that have to come next, whatever the model says; often none."""
        ...

    def likely(self) -> tuple[int, float] | None:
        """A token that may well come next, by what was drawn at places like this one, and how sure
        that is, in (0, 1); None where nothing is known."""
        ...

    def enter(self, token: int) -> bool:
        """Suppose that this token comes next; False, and nothing is supposed, where it may not."""
        ...

    def leave(self, count: int) -> None:
        """Take the last `count` suppositions back."""
        ...
