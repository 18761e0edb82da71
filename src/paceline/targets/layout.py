"""Where everything lies in one target pass: rows, positions and attention masks.

Per sequence the pass holds first its pending tokens (those of the text that are not in the cache
yet, the root last), then the nodes of its tree. Shorter sequences are padded behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.tree import Tree

__all__ = ["PassLayout"]


@dataclass(frozen=True)
class PassLayout:
    """One pass over several texts.

    cached: slots in the cache, per text.
    pending: tokens to read before the tree, per text, the root last.
    trees: one per text.
    min_rows: a narrower pass would cost no less, so it is padded to this.
    """

    cached: Sequence[int]
    pending: Sequence[Sequence[int]]
    trees: Sequence[Tree]
    min_rows: int = 1

    @property
    def width(self) -> int:
        """Rows of the pass."""
        return max(self.min_rows, *map(len, self._rows))

    @property
    def _rows(self) -> list[list[int]]:
        return [
            [*pending, *tree.tokens] for pending, tree in zip(self.pending, self.trees, strict=True)
        ]

    def tokens(self) -> NDArray[np.int64]:
        """[batch, width] token ids; 0 where padded."""
        tokens = np.zeros((len(self.trees), self.width), dtype=np.int64)
        for row, ids in zip(tokens, self._rows, strict=True):
            row[: len(ids)] = ids
        return tokens

    def positions(self) -> NDArray[np.int64]:
        """[batch, width] absolute positions: a node's is its depth below the root."""
        positions = np.zeros((len(self.trees), self.width), dtype=np.int64)
        for text, tree in enumerate(self.trees):
            chain = len(self.pending[text])
            root = self.cached[text] + chain - 1
            positions[text, :chain] = np.arange(self.cached[text], root + 1)
            positions[text, chain : chain + len(tree)] = root + np.array(tree.depths, dtype=int)
        return positions

    def visible(self, slots: int, window: int | None = None) -> NDArray[np.bool_]:
        """[batch, width, slots]: whether a row may attend to a cache slot.

        window: only positions less than this far back are seen (sliding-window attention).
        """
        visible = np.zeros((len(self.trees), self.width, slots), dtype=np.bool_)
        for text, tree in enumerate(self.trees):
            cached, chain = self.cached[text], len(self.pending[text])
            node = cached + chain
            view = visible[text]
            view[:, :cached] = True
            view[:chain, cached:node] = np.tri(chain, dtype=np.bool_)
            view[chain:, cached:node] = True
            view[chain : chain + len(tree), node : node + len(tree)] = tree.ancestor_mask
            # Padding sees itself: a row that sees nothing may turn to NaN, and 0 * NaN is NaN.
            own = np.arange(self.width)
            view[own, cached + own] = True
        if window is not None:
            visible &= self._within(slots, window)
        return visible

    def _within(self, slots: int, window: int) -> NDArray[np.bool_]:
        positions = self.positions()
        keys = np.broadcast_to(np.arange(slots), (len(self.trees), slots)).copy()
        for text, cached in enumerate(self.cached):
            keys[text, cached : cached + self.width] = positions[text]
        return keys[:, None, :] > positions[:, :, None] - window
