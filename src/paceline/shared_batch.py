"""One batch for all streams and threads of a session.

A text advances only while a caller waits for it. A paused stream costs nothing and delays no other;
texts that several threads wait for share passes: the threads take turns, one plays a round for all
that wait, and each then finds its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident

import torch

from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.loop import Batch
from paceline.protocols import Drafter, Planner, Target, check_capabilities
from paceline.records import Round

_IDLE_DRAFTERS = 8
_NO_LOGITS = torch.empty(0)


@dataclass(eq=False)
class OpenText:
    """A text that a session is generating.

    key: of the text in the batch. heard: its rounds that nobody has taken yet. awaited: how many
    callers wait for it.
    """

    generation: Generation
    key: int
    heard: deque[Round] = field(default_factory=deque)
    awaited: int = 0


class Texts:
    """The texts a session is generating, and idle drafters for the next ones.

    new_drafter: makes a drafter. It is called here once, and later when a text needs one more.

    Raises UsageError if the drafter needs something that the target does not offer.
    """

    def __init__(
        self, target: Target, planner: Planner, new_drafter: Callable[[], Drafter]
    ) -> None:
        self.turn = Turns()
        """The lock for using the target, its planner or its drafters."""
        self._batch = Batch(target, planner)
        self._lock = Lock()
        self._open: dict[int, OpenText] = {}
        self._abandoned: deque[int] = deque()
        self._new_drafter = new_drafter
        self._idle = [new_drafter()]
        check_capabilities(self._idle[0], target)

    def begin(self, generation: Callable[[Drafter], Generation]) -> OpenText:
        """Add a text."""
        with self.turn:
            drafter = self._idle.pop() if self._idle else self._new_drafter()
            try:
                begun = generation(drafter)
                self._drop_abandoned()  # the new text may go on in the cache of one
                text = OpenText(begun, self._batch.add(begun))
            except UsageError:  # an unfit prompt is not the drafter's fault
                self._idle.append(drafter)
                raise
            self._open[text.key] = text
            return text

    def end(self, text: OpenText) -> None:
        """Remove a text. Unless it failed, its drafter is free for the next one."""
        with self.turn:
            self._drop(text.key)
        if text.generation.error is None and len(self._idle) < _IDLE_DRAFTERS:
            self._idle.append(text.generation.drafter)

    def abandon(self, key: int) -> None:
        """Give up a text that is no longer wanted; it leaves before the next round. May be called
        at any time, even by the garbage collector."""
        self._abandoned.append(key)

    @contextmanager
    def awaiting(self, text: OpenText) -> Iterator[None]:
        """While this lasts, the text takes part in every round, whichever thread plays it."""
        with self._lock:
            text.awaited += 1
        try:
            yield
        finally:
            with self._lock:
                text.awaited -= 1

    def next_round(self, text: OpenText) -> Round | None:
        """The text's next round, for a caller that awaits it; None if it has ended."""
        while True:
            with self._lock:
                if text.heard:
                    return text.heard.popleft()
                if text.key not in self._open:
                    return None
            with self.turn:
                # Only between rounds is it known whether the text has ended: the thread that plays
                # the last round drops the text before handing that round out.
                if text.heard:
                    continue
                if text.key not in self._batch:
                    return None
                self._step()

    def play(self) -> None:
        """Play one round for all awaited texts, whose rounds the caller gets by `take_rounds`."""
        with self.turn:
            self._step()

    def take_rounds(self, text: OpenText) -> tuple[list[Round], bool]:
        """The text's rounds not taken yet, and whether more may follow."""
        rounds = self._take(text)
        if text.key in self._batch:
            return rounds, True
        # Its last round may be another thread's, which drops the text before handing it out.
        with self.turn:
            return rounds + self._take(text), False

    def _take(self, text: OpenText) -> list[Round]:
        with self._lock:
            rounds = list(text.heard)
            text.heard.clear()
        return rounds

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self._drop(self._abandoned.popleft())

    def _step(self) -> None:
        self._drop_abandoned()
        with self._lock:
            awaited = {key for key, text in self._open.items() if text.awaited}
        rounds = self._batch.step(awaited)
        with self._lock:
            for round in rounds:
                # A round may wait long for its text's owner, who needs no logits; a view of them
                # would keep those of all texts of the pass.
                self._open[round.key].heard.append(round.with_(logits=_NO_LOGITS))

    def _drop(self, key: int) -> None:
        self._batch.drop(key)
        if (text := self._open.pop(key, None)) is not None:
            text.heard.clear()


class Turns:
    """A fair lock, handed on in the order of requests: no thread waits for ever."""

    def __init__(self) -> None:
        self._lock = Lock()
        # One per thread, the owner's first. A thread may go on once it can acquire its own.
        self._queue: deque[Lock] = deque()
        self._owner: int | None = None

    @property
    def mine(self) -> bool:
        """Whether this thread has the turn."""
        return self._owner == get_ident()

    def __enter__(self) -> None:
        if self.mine:
            raise UsageError(
                "a session was used from inside one of its own rounds (a processor or a stop "
                "condition): do that between rounds, or with another session"
            )
        mine = Lock()
        try:
            with self._lock:
                if self._queue:
                    mine.acquire()
                self._queue.append(mine)
            mine.acquire()
            self._owner = get_ident()
        except BaseException:  # interrupted: if the turn has come meanwhile, pass it on
            self._leave(mine)
            raise

    def __exit__(self, *error: object) -> None:
        self._leave(self._queue[0])

    def _leave(self, mine: Lock) -> None:
        with self._lock:
            if mine not in self._queue:
                return
            had_turn = self._queue[0] is mine
            self._queue.remove(mine)
            if had_turn:
                self._owner = None
                if self._queue:
                    self._queue[0].release()
