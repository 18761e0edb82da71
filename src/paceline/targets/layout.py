"""Where everything lies in one target pass: rows, positions, and which row sees which.

Per sequence the pass holds first its pending tokens (those of the text that are not in the cache
yet, the root last), then the nodes of its tree. Shorter sequences are padded behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.tree import Tree

__all__ = ["STATIC_WIDTHS", "PassLayout", "padded_slots", "padded_width", "static_slots"]

STATIC_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of the passes that come in static shapes."""

FEWEST_SLOTS = 256
_EVEN_SLOTS = 4096


def padded_width(rows: int, least: int = 1, static: bool = False) -> int:
    """How many rows a pass gets that needs `rows`.

    least: a narrower pass would cost no less, see `least_rows`.
    static: the shape is to come again, so it is one of `STATIC_WIDTHS` where these are enough.
    """
    rows = max(rows, least)
    if static:
        return next((width for width in STATIC_WIDTHS if width >= rows), rows)
    return rows


def static_slots(used: int) -> int:
    """How many slots a pass of static shape attends to when `used` are in use.

    Few different numbers, so that a long text meets few shapes: they double while slots are
    cheap, and then go by steps that cost little beside what is in use.
    """
    slots = FEWEST_SLOTS
    while slots < min(used, _EVEN_SLOTS):
        slots *= 2
    return max(slots, -(-used // _EVEN_SLOTS) * _EVEN_SLOTS if used > _EVEN_SLOTS else 0)


def padded_slots(used: int, grain: int) -> int:
    """How many slots an ordinary pass attends to when `used` are in use; see `slot_grain`."""
    return -(-used // grain) * grain


@dataclass(frozen=True)
class PassLayout:
    """One pass over several texts.

    cached: slots in the cache, per text.
    pending: tokens to read before the tree, per text, the root last.
    trees: one per text.
    min_rows: the pass is padded to this, see `padded_width`.
    """

    cached: Sequence[int]
    pending: Sequence[Sequence[int]]
    trees: Sequence[Tree]
    min_rows: int = 1

    @cached_property
    def width(self) -> int:
        """Rows of the pass."""
        return max(self.min_rows, *map(len, self._rows))

    @cached_property
    def _rows(self) -> list[list[int]]:
        return [
            [*pending, *tree.as_read]
            for pending, tree in zip(self.pending, self.trees, strict=True)
        ]

    @property
    def largest_token(self) -> int:
        """The largest id that the pass reads."""
        return max(max(row, default=0) for row in self._rows)

    def tokens(self) -> NDArray[np.int64]:
        """[batch, width] ids to read; 0 where padded."""
        tokens = np.zeros((len(self.trees), self.width), dtype=np.int64)
        for row, ids in zip(tokens, self._rows, strict=True):
            row[: len(ids)] = ids
        return tokens

    def positions(self) -> NDArray[np.int64]:
        """[batch, width] absolute positions: a node's is its depth below the root; 0 where
        padded."""
        positions = np.zeros((len(self.trees), self.width), dtype=np.int64)
        for text, tree in enumerate(self.trees):
            chain = len(self.pending[text])
            root = self.cached[text] + chain - 1
            positions[text, :chain] = np.arange(self.cached[text], root + 1)
            positions[text, chain : chain + len(tree)] = root + np.array(tree.depths, dtype=int)
        return positions

    def slots(self) -> NDArray[np.int64]:
        """[batch, width] where in the cache each row's keys and values go."""
        return np.array(self.cached, dtype=np.int64)[:, None] + np.arange(self.width)

    def among(self) -> NDArray[np.bool_]:
        """[batch, width, width]: whether a row may attend to another row of the pass.

        All that is in the cache already is seen by every row, as far as its window reaches.
        """
        among = np.zeros((len(self.trees), self.width, self.width), dtype=np.bool_)
        for text, tree in enumerate(self.trees):
            chain = len(self.pending[text])
            view = among[text]
            view[:chain, :chain] = np.tri(chain, dtype=np.bool_)
            view[chain : chain + len(tree), :chain] = True
            view[chain : chain + len(tree), chain : chain + len(tree)] = tree.ancestor_mask
        # Padding sees itself: a row that sees nothing may turn to NaN, and 0 * NaN is NaN.
        own = np.arange(self.width)
        among[:, own, own] = True
        return among
