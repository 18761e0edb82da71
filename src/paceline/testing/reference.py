"""The reference for the suites: texts read from scratch, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.protocols import Target
from paceline.sampling import Sampler
from paceline.tree import EMPTY

_KEPT = 512  # rows, most of which are asked for again soon or never


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with the sentence `otherwise` unless `holds`."""
    if not holds:
        raise AssertionError(otherwise)


class Reference:
    """A target that reads one whole text at a time and caches only scores.

    target: for exclusive use.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def row(self, text: Sequence[int]) -> torch.Tensor:
        """Raw logits [vocab_size] of the token after `text`, which has at least one token."""
        key = tuple(text)
        if key not in self._rows:
            if len(self._rows) == _KEPT:
                del self._rows[next(iter(self._rows))]
            slot = self.target.open(key)
            self._rows[key] = self.target.score({slot: EMPTY})[slot][0].clone()
            self.target.close(slot)
            self.target.forget()
        return self._rows[key]

    def continued(self, text: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """The next `count` tokens by plain decoding, fewer if the model's context ends first."""
        most = self.target.max_context
        end = len(text) + count if most is None else min(most, len(text) + count)
        whole = list(text)
        while len(whole) < end:
            whole.append(sampler.draw(self.row(whole), whole))
        return whole[len(text) :]
