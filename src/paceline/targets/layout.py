"""The layout of one target pass: rows, positions, and which row sees which.

All rows form one sequence, text by text: first the pending tokens (those not in the cache yet, the
root last), then the nodes of the tree. So the cost of a pass depends on its total number of rows,
however different its texts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from paceline.tree import EMPTY, Tree

STATIC_WIDTHS = (1, 8, 16, 32, 64, 128)
"""Numbers of rows of passes with static shapes. On an H100 two and four rows take longer than eight,
see docs/speed.md."""

FEWEST_SLOTS = 256
_EVEN_SLOTS = 4096

Longs = NDArray[np.int64]


def padded_width(rows: int, least: int = 1, static: bool = False) -> int:
    """Number of rows for a pass that needs `rows`. least: a narrower pass would cost no less, see
    `least_rows`. static: round up to one of `STATIC_WIDTHS`, if wide enough, so that shapes
    recur."""
    rows = max(rows, least)
    return next((width for width in STATIC_WIDTHS if static and width >= rows), rows)


def static_slots(used: int) -> int:
    """Number of slots that a pass of static shape attends to when `used` are in use.

    Takes few values, so that a long text needs few shapes: they double while slots are cheap, then
    grow by steps that are small compared with `used`.
    """
    if used > _EVEN_SLOTS:
        return -(-used // _EVEN_SLOTS) * _EVEN_SLOTS
    return max(FEWEST_SLOTS, 1 << (used - 1).bit_length())


@dataclass(frozen=True)
class TextRows:
    """One text's part of a pass.

    start: of its stretch of the cache. cached: tokens there. pending: tokens to read, in order.
    tree: below the last of them. scored: whether the logits of the last one and the tree are
    wanted. padding: unused rows after all others.
    """

    start: int
    cached: int
    pending: Sequence[int]
    tree: Tree = EMPTY
    scored: bool = True
    padding: int = 0

    @cached_property
    def tokens(self) -> list[int]:
        """Ids to read; 0 for padding."""
        return [*self.pending, *self.tree.as_read, *(0 for _ in range(self.padding))]

    def __len__(self) -> int:
        """Rows with padding."""
        return self.wanted + self.padding

    @property
    def wanted(self) -> int:
        """Rows without padding."""
        return len(self.pending) + len(self.tree)

    @property
    def used(self) -> int:
        """Slots of the stretch in use during the pass."""
        return self.cached + len(self)

    @cached_property
    def positions(self) -> list[int]:
        """Positions by row: a node's is the root's plus its depth; 0 for padding."""
        # Lists, here and below: for a few rows they are faster than numpy.
        root = self.cached + len(self.pending) - 1
        nodes = [root + depth for depth in self.tree.depths]
        return [*range(self.cached, root + 1), *nodes, *(0 for _ in range(self.padding))]

    def visible(self, slots: int) -> NDArray[np.bool_]:
        """Whether each row may attend to each slot of the text's stretch, [rows, slots]. Every row
        sees everything already cached; windows are applied elsewhere."""
        seen = np.zeros((len(self), slots), dtype=np.bool_)
        seen[:, : self.cached] = True
        read, end, width = len(self.pending), self.wanted, len(self)
        among = seen[:, self.cached : self.cached + width]
        among[:read, :read] = np.tri(read, dtype=np.bool_)
        among[read:end, :read] = True
        among[read:end, read:end] = self.tree.ancestor_mask
        # Padding sees itself: a row that sees nothing may become NaN, and 0 * NaN is NaN.
        own = np.arange(width)
        among[own, own] = True
        return seen

    def stretches(self, window: int | None) -> tuple[list[int], list[int], list[list[int]]]:
        """What each row sees, as slots of the pool: the first slot and the length of a stretch, and
        the further slots of a node's path. A padding row sees itself.

        window: see `Windows`.
        """
        pending, positions = len(self.pending), self.positions
        root = self.cached + pending
        firsts, counts = list[int](), list[int]()
        extra: list[list[int]] = [[] for _ in range(len(self))]
        for row, position in enumerate(positions[: self.wanted]):
            lowest = 0 if window is None else max(0, position - window + 1)
            end = min(position + 1, root)
            first = min(lowest, end)
            firsts.append(self.start + first)
            counts.append(end - first)
            if row >= pending:
                extra[row] += [
                    self.start + root + each
                    for each in self.tree.path_to(row - pending)
                    if positions[pending + each] >= lowest
                ]
        own = self.start + self.cached
        firsts += range(own + self.wanted, own + len(self))
        counts += [1] * self.padding
        return firsts, counts, extra


@dataclass(frozen=True)
class PassLayout:
    """One pass over several texts.

    texts: in the order of their rows; the last one has the padding.
    """

    texts: Sequence[TextRows]

    @cached_property
    def rows(self) -> int:
        """Rows of the pass."""
        return sum(map(len, self.texts))

    @cached_property
    def firsts(self) -> list[int]:
        """The first row of each text."""
        return [0, *accumulate(map(len, self.texts))][:-1]

    @property
    def scored(self) -> list[range]:
        """The rows whose logits are wanted, text by text."""
        return [
            range(first + len(text.pending) - 1, first + text.wanted)
            for first, text in zip(self.firsts, self.texts)
            if text.scored
        ]

    def tokens(self) -> Longs:
        """Ids to read, [rows]."""
        return _numbers([text.tokens for text in self.texts])

    def positions(self) -> Longs:
        """Absolute positions, [rows]."""
        return _numbers([text.positions for text in self.texts])

    def places(self) -> Longs:
        """Slots of the pool that keys and values go to, [rows]."""
        firsts = (text.start + text.cached for text in self.texts)
        return _numbers([range(at, at + len(text)) for at, text in zip(firsts, self.texts)])

    def stretches(
        self, window: int | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], list[list[int]]]:
        """See `TextRows.stretches`; 32-bit numbers."""
        parts = zip(*(text.stretches(window) for text in self.texts), strict=True)
        first, count, extra = (chain.from_iterable(each) for each in parts)
        return np.fromiter(first, np.int32), np.fromiter(count, np.int32), [*extra]


def _numbers(parts: Sequence[Sequence[int]]) -> Longs:
    """Concatenate the parts."""
    return np.array([*chain.from_iterable(parts)], dtype=np.int64)
