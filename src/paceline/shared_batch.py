"""One batch for all streams and threads of a session.

A text goes on while somebody waits for it: a stream that is paused costs nothing and holds nobody
up, and texts that several threads wait for go on in common passes. Whoever waits does the work, in
turns: one thread plays a round for all who wait meanwhile, and each finds its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident

from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.loop import Batch
from paceline.protocols import Drafter, Planner, Target, check_capabilities
from paceline.records import Round

__all__ = ["SharedBatch", "Texts"]

_IDLE_DRAFTERS = 8


class SharedBatch:
    """Hands out the rounds of a batch, text by text."""

    def __init__(self, batch: Batch) -> None:
        self.turn = _Turns()
        """Held by whoever uses the target, its planner or its drafters."""
        self._batch = batch
        self._lock = Lock()
        self._awaited: Counter[int] = Counter()
        self._heard: dict[int, deque[Round]] = {}
        self._abandoned: deque[int] = deque()

    def add(self, generation: Generation) -> int:
        """See `Batch.add`. The caller has the turn."""
        key = self._batch.add(generation)
        self._heard[key] = deque()
        return key

    def drop(self, key: int) -> None:
        """See `Batch.drop`."""
        with self.turn:
            self._drop(key)

    def abandon(self, key: int) -> None:
        """Nobody will ask for this text any more. May be called at any time, by the garbage
        collector, too; the text leaves before the next round."""
        self._abandoned.append(key)

    @contextmanager
    def awaiting(self, key: int) -> Iterator[None]:
        """As long as this lasts the text goes on whoever plays a round."""
        with self._lock:
            self._awaited[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._awaited[key] -= 1

    def next_round(self, key: int) -> Round | None:
        """The text's next round, for whoever awaits it; None where it has ended."""
        while True:
            with self._lock:
                heard = self._heard.get(key)
                if heard:
                    return heard.popleft()
            if heard is None:
                return None
            with self.turn:
                # Whether it has ended is known only between rounds: whoever plays the last one drops
                # the text before that round is handed out.
                if heard:
                    continue
                if key not in self._batch:
                    return None
                self._step()

    def play(self) -> None:
        """One round for all texts that are awaited. For who drives the batch on behalf of them all,
        and then asks for what each has `heard`."""
        with self.turn:
            self._step()

    def heard(self, key: int) -> tuple[list[Round], bool]:
        """The text's rounds that nobody has taken yet, and whether it goes on after them."""
        goes_on = key in self._batch
        with self._lock:
            heard = self._heard.get(key, deque())
            rounds = list(heard)
            heard.clear()
        return rounds, goes_on

    def _step(self) -> None:
        while self._abandoned:
            self._drop(self._abandoned.popleft())
        with self._lock:
            self._awaited = +self._awaited  # without those at zero
            awaited = set(self._awaited)
        rounds = self._batch.step(awaited)
        with self._lock:
            for round in rounds:
                self._heard[round.key].append(round)

    def _drop(self, key: int) -> None:
        self._batch.drop(key)
        self._heard.pop(key, None)


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


class _Turns:
    """A lock that is handed on in the order of asking: nobody waits for ever."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: deque[Lock] = deque()
        self._taken = False
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == get_ident():
            raise UsageError(
                "a session was used from inside one of its own rounds (a processor or a stop "
                "condition): do that between rounds, or with another session"
            )
        mine: Lock | None = None
        with self._lock:
            if self._taken:
                mine = Lock()
                mine.acquire()
                self._queue.append(mine)
            self._taken = True
        if mine is not None:
            self._wait(mine)
        self._owner = get_ident()

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._hand_on()

    def _wait(self, mine: Lock) -> None:
        try:
            mine.acquire()
        except BaseException:  # interrupted: the turn, if it has come meanwhile, is the next one's
            with self._lock:
                still_waiting = mine in self._queue
                if still_waiting:
                    self._queue.remove(mine)
            if not still_waiting:
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._taken = False
