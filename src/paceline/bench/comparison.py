"""Run every contender on every text, in turns: the harness behind every comparison.

Plain decoding is the first contender of every run. All share one clock and one token counter. On
each text they take turns, in an order that changes from text to text, so that warm-up and slow-down
of the machine affect all of them alike; in the first repeat plain decoding starts, in each later one
another contender. Every repeat goes through all texts, so that no method has just met the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeVar

import torch

from paceline.bench.entries import Difference, Entry, LeftOut
from paceline.bench.memory import MemoryUse
from paceline.bench.metrics import loop_share
from paceline.bench.suites import Text
from paceline.bench.traces import Recording
from paceline.bench.trial import PLAIN, Contender, Request
from paceline.errors import PacelineError, UsageError
from paceline.options import Options
from paceline.prefix import common_prefix
from paceline.protocols import Target
from paceline.session import Session
from paceline.tree import EMPTY

_WARM_UP_TOKENS = 8

T = TypeVar("T")

_Done = dict[tuple[object, ...], Entry | LeftOut]


@dataclass
class Comparison:
    """A run.

    contenders: plain decoding first, names unique.
    texts: ids unique within a suite.

    Raises UsageError if plain decoding is not first, if a name or id occurs twice, and for warm
    methods with several repeats.
    """

    session: Session
    contenders: Sequence[Contender]
    texts: Sequence[Text | Recording]
    options: Options
    repeats: int = 1
    _memory: MemoryUse = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [each.name for each in self.contenders]
        if names[:1] != [PLAIN]:
            raise UsageError("plain decoding must be the first contender of a comparison")
        if not self.texts:
            raise UsageError("there is nothing to compare on: give at least one prompt")
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1, got {self.repeats}")
        if self.repeats > 1 and any(getattr(each, "warm", False) for each in self.contenders):
            raise UsageError(
                "a method that keeps what it learns would know a text from its first trial: repeat "
                "once only (--repeats 1)"
            )
        _check_once(names, "the name of several methods")
        _check_once(
            [f"{text.suite}/{text.record.id}" for text in self.texts], "the id of several prompts"
        )

    @property
    def trials(self) -> int:
        """How often `run` calls `on_trial` if no text is left out."""
        turns = sum(text.turns(self.session) for text in self.texts)
        return turns * len(self.contenders) * self.repeats

    def run(self, sink: list[Entry | LeftOut], on_trial: Callable[[], None] = lambda: None) -> None:
        """Run what `sink` does not hold yet, in an order that does not depend on what it holds. If
        a contender fails on a text, the error is recorded and the run continues."""
        loaded = {each.name: each.loaded for each in self.contenders}
        device = torch.device(self.session.target.describe().device)
        self._memory = MemoryUse(device, PLAIN, loaded)
        done: _Done = {_name(entry): entry for entry in sink}
        plain, *others = self.contenders
        warm = False
        for repeat, (index, text) in product(range(self.repeats), enumerate(self.texts)):
            for turn, request in enumerate(self._requests(text, done)):
                place = text.suite, text.record.task, text.record.id, turn
                if isinstance(request, str):
                    left_out = LeftOut(*place, request)
                    if _name(left_out) not in done:
                        done[_name(left_out)] = left_out
                        sink.append(left_out)
                    break
                # In the first repeat plain decoding starts: others are compared to its output.
                for contender in in_turns([plain, *in_turns(others, index)], repeat):
                    names = *place, repeat, contender.name
                    entry = Entry(*names, len(request.ids), group=text.group)
                    if _name(entry) not in done:
                        if not warm:
                            self._warm_up(request)
                            warm = True
                        entry = self._play(contender, entry, request, done)
                        done[_name(entry)] = entry
                        sink.append(entry)
                    on_trial()

    def _requests(self, text: Text | Recording, done: _Done) -> Iterator[Request | str]:
        """Yield the request of each turn; if not all can be run, yield the reason last."""

        def answers(turn: int) -> Sequence[int] | None:
            plain = done.get((text.suite, text.record.id, turn, 0, PLAIN))
            return plain.output if isinstance(plain, Entry) else None

        room = self.session.target.max_context
        turns = 0
        try:
            for request in text.requests(self.session, self.options, answers):
                new = request.options.max_new_tokens
                if room is not None and len(request.ids) + new > room:
                    yield (
                        f"prompt and {new} new tokens do not fit into the model's context of {room}"
                    )
                    return
                yield request
                turns += 1
        except Exception as error:  # for example, a chat template may refuse a conversation
            yield _sentence(error)
            return
        if turns < text.turns(self.session):
            yield "plain decoding failed on an earlier turn"

    def _warm_up(self, request: Request) -> None:
        """Allocate, choose kernels, capture graphs; what fails here fails again on record."""
        # A GPU captures a graph for every width and length that comes.
        on_gpu = torch.device(self.session.target.describe().device).type == "cuda"
        tokens = request.options.max_new_tokens if on_gpu else _WARM_UP_TOKENS
        options = Options(max_new_tokens=tokens, ignore_eos=True)
        # Reversed, so that contenders learn nothing about the first text from it.
        other = replace(request, ids=request.ids[:512][::-1], options=options)
        for contender in self.contenders:
            taken = self._memory.trial(contender.name)
            with suppress(Exception):
                contender.generate(other)
            taken()  # what it has left loaded

    def _play(self, contender: Contender, entry: Entry, request: Request, done: _Done) -> Entry:
        taken = self._memory.trial(contender.name)
        first = done.get((*entry.key, 0, PLAIN))
        plain = first.output if isinstance(first, Entry) else None
        parting = None
        try:
            trial = contender.generate(request)
            peak = taken()
            same = plain is not None and list(plain) == trial.output
            if not (plain is None or same or trial.lossy):
                parting = difference(self.session.target, request.ids, plain, trial.output)
        except Exception as error:
            return replace(entry, error=_sentence(error))
        return replace(
            entry,
            tokens=len(trial.output),
            seconds=trial.seconds,
            stats=trial.stats,
            peak_bytes=peak,
            loop_share=loop_share(trial.output),
            output=None if same else tuple(trial.output),
            difference=parting,
            lossy=trial.lossy,
        )


def difference(
    target: Target, ids: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Difference:
    """Where an output after `ids` parts from plain decoding's."""
    place = common_prefix(plain, other)
    if place == min(len(plain), len(other)) or other[place] >= target.vocab_size:
        # One output ended, or a baseline's padded vocabulary has ids the target cannot score.
        return Difference(place, [*plain, None][place], [*other, None][place], None)
    slot = target.open([*ids, *plain[:place]])
    try:
        row = target.score({slot: EMPTY})[slot][0]
        gap = float(row[plain[place]] - row[other[place]])
    finally:
        target.close(slot)
    return Difference(place, plain[place], other[place], gap)


def in_turns(contenders: Sequence[T], start: int) -> list[T]:
    """Rotate the list so that it begins at index `start`, modulo its length."""
    start %= max(1, len(contenders))
    return [*contenders[start:], *contenders[:start]]


def _name(entry: Entry | LeftOut) -> tuple[object, ...]:
    """What identifies an entry within its run."""
    if isinstance(entry, LeftOut):
        return (*entry.key, "left out")
    return (*entry.key, entry.repeat, entry.method)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, PacelineError) else f"{type(error).__name__}: {text}"


def _check_once(names: Sequence[str], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} is {what}: give each its own")
