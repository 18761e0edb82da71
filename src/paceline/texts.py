"""The texts that a session is writing, and the drafters that wait for the next one."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.loop import Batch
from paceline.protocols import Drafter, Planner, Target, check_capabilities
from paceline.shared_batch import SharedBatch

__all__ = ["Texts"]

_IDLE_DRAFTERS = 8


class Texts:
    """The texts that a session is writing, and drafters that wait for the next one.

    new_drafter: makes one more. It is first called here, and later by whoever begins a text.

    Raises UsageError where the drafter needs something that the target does not offer.
    """

    def __init__(
        self, target: Target, planner: Planner, new_drafter: Callable[[], Drafter]
    ) -> None:
        self.batch = SharedBatch(Batch(target, planner))
        self._new_drafter = new_drafter
        first = new_drafter()
        check_capabilities(first, target)
        self._idle = [first]

    def begin(self, generation: Callable[[Drafter], Generation]) -> tuple[Generation, int]:
        """A text joins the others; it and its key in the batch."""
        with self.batch.turn:
            drafter = self._idle.pop() if self._idle else self._new_drafter()
            try:
                begun = generation(drafter)
                return begun, self.batch.add(begun)
            except UsageError:  # a prompt that does not fit says nothing against the drafter
                self._idle.append(drafter)
                raise

    def end(self, generation: Generation, key: int) -> None:
        """A text leaves, and its drafter is free for the next one, unless something went wrong."""
        self.batch.drop(key)
        if generation.error is None and len(self._idle) < _IDLE_DRAFTERS:
            self._idle.append(generation.drafter)
