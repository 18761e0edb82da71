"""When a text ends: end-of-sequence ids, a token limit, and conditions such as stop strings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from paceline.errors import INTERRUPTIONS, UsageError
from paceline.records import FinishReason


class Stopping:
    """Takes every drawn token, once and in order, and says after which one the text ends.

    It is asked during the walk, so nothing after the last token is ever drawn, committed, counted
    or streamed.

    eos_ids: any number of ids, each of which ends the text (and belongs to it).
    conditions: called with each new token; True ends the text after it.
    held: a constraint says where the text may end: `eos_ids` end it only together with a condition.

    Raises UsageError if `max_new_tokens` is below 1.
    """

    def __init__(
        self,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        conditions: Sequence[Callable[[int], bool]] = (),
        held: bool = False,
    ) -> None:
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        self.remaining = max_new_tokens
        self.reason: FinishReason | None = None
        self._eos_ids = frozenset(eos_ids)
        self._conditions, self._held = tuple(conditions), held

    def limit(self, tokens: int) -> None:
        """Allow at most this many more tokens."""
        self.remaining = min(self.remaining, tokens)

    def push(self, token: int) -> bool:
        """Take one more token; True if the text ends with it, and `reason` says why."""
        self.remaining -= 1
        # No short circuit: conditions may keep state, so each must see every token.
        stopped = [condition(token) for condition in self._conditions]
        if token in self._eos_ids and (not self._held or any(stopped)):
            self.reason = "eos"
        elif any(stopped):
            self.reason = "stop"
        elif self.remaining <= 0:
            self.reason = "length"
        return self.reason is not None


def cut_off_reason(error: BaseException | None) -> FinishReason:
    """The finish reason of a text that was cut off; None: by nothing but its owner."""
    return "interrupted" if error is None or isinstance(error, INTERRUPTIONS) else "error"
