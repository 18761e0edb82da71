"""One text's share of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.tree import Tree

__all__ = ["PassJob"]


@dataclass(frozen=True)
class PassJob:
    """What a pass does for one text: read these tokens and, if there is a tree, score it below the
    last of them."""

    slot: int
    pending: Sequence[int] = field(repr=False)
    tree: Tree | None = None

    @property
    def rows(self) -> int:
        """Of the pass, without padding."""
        return len(self.pending) + (0 if self.tree is None else len(self.tree))
