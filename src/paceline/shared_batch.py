"""One batch for all streams and threads of a session.

A text advances only while a caller waits for it. A paused stream costs nothing and delays no other;
texts that several threads wait for share passes: the threads take turns, one plays a round for all
that wait, and each then finds its own. Sessions on one target take turns, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from os import getpid
from threading import Lock, RLock, get_ident
from typing import TypeVar
from weakref import WeakValueDictionary

import torch

from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.loop import Batch
from paceline.protocols import Drafter, Planner, Target, check_capabilities
from paceline.records import Round

T = TypeVar("T")

_IDLE_DRAFTERS = 8
_NO_LOGITS = torch.empty(0)


@dataclass(eq=False)
class OpenText:
    """A text that a session is generating.

    key: of the text in the batch. heard: its rounds that nobody has taken yet. callers: a mark of
    each that waits for it.
    """

    generation: Generation
    key: int
    heard: deque[Round] = field(default_factory=deque)
    callers: set[object] = field(default_factory=set)


class Texts:
    """The texts a session is generating, and idle drafters for the next ones.

    new_drafter: makes a drafter. It is called here once, and later when a text needs one more.

    Raises UsageError if the drafter needs something that the target does not offer.
    """

    # There is no lock but the turn: a generator that holds a stream may be collected anywhere, and
    # closes the stream, which takes the turn.
    def __init__(
        self, target: Target, planner: Planner, new_drafter: Callable[[], Drafter]
    ) -> None:
        self.turn = _turns_of(target)
        """Needed to use the target, its planner or its drafters."""
        self._busy = False  # whether one of these texts has the turn
        self._batch = Batch(target, planner)
        self._open: dict[int, OpenText] = {}
        self._abandoned: deque[int] = deque()
        self._new_drafter = new_drafter
        self._idle = [self.turn.during(new_drafter)]
        check_capabilities(self._idle[0], target)

    def begin(self, generation: Callable[[Drafter], Generation]) -> OpenText:
        """Add a text."""
        return self._during(partial(self._begin, generation))

    def end(self, text: OpenText) -> None:
        """Remove a text; in the middle of a round, before the next one."""
        if self.turn.mine:
            self.abandon(text.key)
        else:
            self.turn.first(lambda: self._busily(lambda: self._drop(text.key)))

    def abandon(self, key: int) -> None:
        """Give up a text that is no longer wanted; it leaves before the next round. May be called
        at any time, even by the garbage collector."""
        self._abandoned.append(key)

    @contextmanager
    def awaiting(self, text: OpenText) -> Iterator[None]:
        """While this lasts, the text takes part in every round, whichever thread plays it."""
        caller = object()
        try:  # from here on: an interruption must not leave a mark behind
            text.callers.add(caller)
            yield
        finally:
            text.callers.discard(caller)

    def next_round(self, text: OpenText) -> Round | None:
        """The text's next round, for a caller that awaits it; None if it has ended."""
        while text.key in self._open:
            with suppress(IndexError):
                return text.heard.popleft()
            if not self._during(partial(self._play_for, text)):
                break
        return None

    def play(self) -> None:
        """Play one round for all awaited texts, whose rounds the caller gets by `take_rounds`."""
        self._during(self._step)

    def take_rounds(self, text: OpenText) -> tuple[list[Round], bool]:
        """The text's rounds not taken yet, and whether more may follow."""
        rounds = self._take(text)
        if text.key in self._batch:
            return rounds, True
        # Its last round may be another thread's, which drops the text before handing it out.
        return rounds + self._during(partial(self._take, text)), False

    def _during(self, work: Callable[[], T]) -> T:
        """Do this in a turn. Raises UsageError in the middle of a round of these texts."""
        if self._busy and self.turn.mine:
            raise UsageError(
                "a session was used from inside one of its own rounds (a processor or a stop "
                "condition): do that between rounds, or with another session"
            )
        return self.turn.during(lambda: self._busily(work))

    def _busily(self, work: Callable[[], T]) -> T:
        self._busy = True
        try:
            return work()
        finally:
            self._busy = False

    def _begin(self, generation: Callable[[Drafter], Generation]) -> OpenText:
        self._drop_abandoned()  # the new text may go on with the cache and the drafter of one
        drafter = self._idle.pop() if self._idle else self._new_drafter()
        try:
            begun = generation(drafter)
            text = OpenText(begun, self._batch.add(begun))
        except UsageError:  # an unfit prompt is not the drafter's fault
            self._idle.append(drafter)
            raise
        self._open[text.key] = text
        return text

    def _play_for(self, text: OpenText) -> bool:
        """Play a round, unless the text has one that waits for its owner; False if it has ended."""
        # Only in a turn is that known: the thread that plays the last round drops the text before
        # handing that round out.
        if text.heard:
            return True
        if text.key not in self._batch:
            return False
        self._step()
        return True

    def _step(self) -> None:
        self._drop_abandoned()
        awaited = {key for key, text in self._open.items() if text.callers}
        for round in self._batch.step(awaited):
            # A round may wait long for its text's owner, who needs no logits; a view of them would
            # keep those of all texts of the pass.
            self._open[round.key].heard.append(round.with_(logits=_NO_LOGITS))

    def _take(self, text: OpenText) -> list[Round]:
        rounds = list[Round]()
        with suppress(IndexError):
            while True:
                rounds.append(text.heard.popleft())
        return rounds

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self._drop(self._abandoned.popleft())

    def _drop(self, key: int) -> None:
        """Remove a text. Unless it failed, its drafter is free for the next one."""
        self._batch.drop(key)
        if (text := self._open.pop(key, None)) is not None:
            text.heard.clear()
            if text.generation.error is None and len(self._idle) < _IDLE_DRAFTERS:
                self._idle.append(text.generation.drafter)


class Turns:
    """A fair lock, handed on in the order of requests: no thread waits for ever.

    An interruption leaves it free, wherever it comes. So it is no context manager: an `__exit__`
    written in Python might be interrupted before it begins, that of a `Lock` cannot be.
    """

    def __init__(self) -> None:
        self._owner: int | None = None
        self._process, self._beginning = 0, RLock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Begin without those who waited in the process that this one was forked from."""
        with self._beginning:
            if self._process == getpid():  # another thread came first
                return
            if self._owner is not None:
                raise UsageError(
                    "this process was forked while a text was being written in its parent: load "
                    "the model in this process, or fork while no thread writes"
                )
            self._asking = Lock()
            self._last = Lock()  # of who asked last, held until its turn is over
            # Re-entrant: garbage may be collected where the turn is over but this is still held.
            self._held = RLock()
            self._process = getpid()  # last: until then, other threads come here as well

    @property
    def mine(self) -> bool:
        """Whether this thread has the turn. Raises UsageError in a process that was forked within
        one: the thread that had it is not there to end it."""
        if self._process != getpid():
            self._begin_anew()
        return self._owner == get_ident()

    def during(self, work: Callable[[], T]) -> T:
        """Do this when it is this thread's turn; within one, at once. Returns its result."""
        if self.mine:
            return work()
        place = Lock()
        with place:
            with self._asking:
                before, self._last = self._last, place
            with before:
                return self._alone(work)

    def first(self, work: Callable[[], T]) -> T:
        """Do this ahead of all that wait, perhaps this thread among them: garbage may be collected
        while it does."""
        return work() if self.mine else self._alone(work)

    def _alone(self, work: Callable[[], T]) -> T:
        thread = get_ident()
        with self._held:  # whoever was before may have left in the middle of the queue
            self._owner = thread
            try:
                return work()
            finally:
                self._owner = None


_by_target: WeakValueDictionary[int, Turns] = WeakValueDictionary()
_finding = Lock()


def _turns_of(target: Target) -> Turns:
    """Those of all sessions on this target. Whoever has them keeps the target, too: while they are
    here, no other can have its id."""
    with _finding:
        return _by_target.setdefault(id(target), Turns())
