"""One text's place in a grammar."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
import torch

from paceline.constraints.habits import FEW, Habits
from paceline.errors import UsageError

__all__ = ["GrammarMatcher", "first_line"]

_LONGEST_REASON = 300


class GrammarMatcher:
    """A `Matcher` on top of llguidance's.

    matcher: an `LLMatcher`. tokens: number it knows. vocab_size: of the model, which may know
    fewer. habits: of the model, learned from what is drawn.

    Raises UsageError if llguidance fails, e.g. because a lexer has become too complex.
    """

    def __init__(self, matcher: Any, tokens: int, vocab_size: int, habits: Habits) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._habits = habits
        self._place: int | None = None  # if few tokens are allowed, a hash of these
        self._bits = np.zeros((tokens + 31) // 32, dtype=np.uint32)

    def copy(self) -> GrammarMatcher:
        """Another matcher at the same place."""
        return GrammarMatcher(
            self._matcher.deep_copy(), self._tokens, self._vocab_size, self._habits
        )

    def allowed(self) -> torch.Tensor:
        """See `Matcher.allowed`."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        count = np.count_nonzero(bits)
        if not count:
            raise UsageError("the constraint allows no token of this model here")
        self._place = hash(self._bits.tobytes()) if count <= FEW else None
        return torch.from_numpy(bits.view(np.bool_))

    def push(self, token: int) -> bool:
        """See `Matcher.push`."""
        if self._place is not None:
            self._habits.learn(self._place, token)
            self._place = None
        self._matcher.consume_token(token)
        self._check()
        stopped: bool = self._matcher.is_stopped()
        return stopped

    def forced(self) -> list[int]:
        """See `Matcher.forced`."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        return [*takewhile(lambda token: token < self._vocab_size, forced)]

    def likely(self) -> tuple[int, float] | None:
        """See `Matcher.likely`."""
        self.allowed()
        return None if self._place is None else self._habits.recall(self._place)

    def enter(self, token: int) -> bool:
        """See `Matcher.enter`."""
        entered: int = self._matcher.try_consume_tokens([token])
        return entered == 1

    def leave(self, count: int) -> None:
        """See `Matcher.leave`."""
        self._matcher.rollback(count)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the constraint failed: {first_line(self._matcher.get_error())}")


def first_line(text: str) -> str:
    """The first line of a message of llguidance, without its details; cut if too long."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + "…"
