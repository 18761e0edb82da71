"""The contract of a matcher, which says what a constraint allows at a text's position."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Matcher"]


class Matcher(Protocol):
    """One text's position in its constraint, e.g. a grammar.

    Errors are raised, and end only that text.
    """

    def copy(self) -> Matcher:
        """An independent matcher at the same position."""

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next, bool [vocabulary] on the CPU; at least one is True."""

    def push(self, token: int) -> bool:
        """Advance by a drawn token; True if the text is complete and nothing can follow."""

    def forced(self) -> list[int]:
        """The tokens that must come next, whatever the model says; often none."""

    def likely(self) -> tuple[int, float] | None:
        """A likely next token and its estimated chance in (0, 1); None if nothing is known."""

    def enter(self, token: int) -> bool:
        """Advance tentatively by a token; False, without moving, if it is not allowed."""

    def leave(self, count: int) -> None:
        """Undo the last `count` tentative steps."""
