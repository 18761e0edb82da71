"""Every contender on every text, in turns: the one harness behind every comparison.

Plain decoding is the first contender of every run. All go through the same clock and the same
token counter. Per text they take turns, `repeats` times over, each time beginning with another
one: whatever warms or tires the machine meets every contender in every place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from paceline.bench.entries import Difference, Entry, LeftOut, completed
from paceline.bench.memory import peak_meter
from paceline.bench.results import Memory, Sink
from paceline.bench.trial import PLAIN, Contender, Request
from paceline.errors import PacelineError, UsageError
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.session import Session
from paceline.tree import EMPTY

__all__ = ["Contest", "Text", "in_turns"]

_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Text:
    """One prompt of a suite; a conversation is several texts."""

    suite: str
    record: PromptRecord


@dataclass
class Contest:
    """A run.

    contenders: plain decoding first, names all different.
    texts: ids differ within a suite.

    Raises UsageError for a list without plain decoding, or names or ids that come twice.
    """

    session: Session
    contenders: Sequence[Contender]
    texts: Sequence[Text]
    options: Options
    repeats: int = 1

    def __post_init__(self) -> None:
        names = [each.name for each in self.contenders]
        if names[:1] != [PLAIN]:
            raise UsageError("plain decoding has to be the first contender of a comparison")
        if not self.texts:
            raise UsageError("there is nothing to compare on: give at least one prompt")
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1, got {self.repeats}")
        _check_once(names, "the name of several methods")
        _check_once(
            [f"{text.suite}/{text.record.id}" for text in self.texts], "the id of several prompts"
        )

    @property
    def trials(self) -> int:
        """How often `run` will call `on_trial`, if no text is left out."""
        return self._turns() * len(self.contenders) * self.repeats

    def _turns(self) -> int:
        return sum(1 if self._is_raw(text) else len(text.record.turns) for text in self.texts)

    def run(self, sink: Sink | None = None, on_trial: Callable[[], None] = lambda: None) -> Sink:
        """Run what `sink` does not hold yet, in an order that does not depend on what it holds.

        A contender that fails on a text is recorded with its error, and the run goes on.
        """
        sink = Memory() if sink is None else sink
        done: dict[tuple[object, ...], Entry | LeftOut] = {
            _name(entry): entry for entry in sink.entries
        }
        warm = False
        for index, text in enumerate(self.texts):
            for turn, request in self._requests(text, done):
                start = self._blank(text, turn, request)
                for repeat in range(self.repeats):
                    for contender in self._order(index, repeat):
                        entry = replace(start, method=contender.name, repeat=repeat)
                        if _name(entry) not in done:
                            if not warm:
                                self._warm_up(request)
                                warm = True
                            entry = self._play(contender, entry, request, done)
                            done[_name(entry)] = entry
                            sink.append(entry)
                        on_trial()
            self._note_left_out(text, done, sink)
        return sink

    def _order(self, index: int, repeat: int) -> Sequence[Contender]:
        """Plain decoding goes first once: the others are compared with what it wrote there."""
        plain, *others = self.contenders
        if repeat == 0:
            return [plain, *in_turns(others, index)]
        return in_turns(self.contenders, index + repeat)

    def _requests(
        self, text: Text, done: dict[tuple[object, ...], Entry | LeftOut]
    ) -> Iterator[tuple[int, Request]]:
        """What to generate at each turn; plain decoding's own answers stand in between."""
        session, record = self.session, text.record
        references = session.encode_references(record.references)
        if self._is_raw(text):
            ids = session.encode("\n\n".join(record.turns))
            if not self._too_long(ids):
                yield 0, Request(ids, references, self.options)
            return
        messages: list[dict[str, str]] = []
        for turn, message in enumerate(record.turns):
            messages.append({"role": "user", "content": message})
            ids = session.encode(messages)
            if self._too_long(ids):
                return
            yield turn, Request(ids, references, self.options)
            plain = done.get((text.suite, record.id, turn, 0, PLAIN))
            if not isinstance(plain, Entry) or plain.output is None:
                return
            answer = session.tokenizer.decode(plain.output, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": answer})

    def _is_raw(self, text: Text) -> bool:
        """Whether the turns are one text to continue; without a chat template they have to be."""
        return text.record.raw or not self.session.tokenizer.chat_template

    def _too_long(self, ids: Sequence[int]) -> bool:
        room = self.session.target.max_context
        return room is not None and len(ids) + self.options.max_new_tokens > room

    def _blank(self, text: Text, turn: int, request: Request) -> Entry:
        record = text.record
        return Entry(text.suite, record.task, record.id, turn, 0, PLAIN, len(request.ids))

    def _warm_up(self, request: Request) -> None:
        """Allocate, choose kernels, capture graphs; what fails here will fail on record, too."""
        options = Options(max_new_tokens=_WARM_UP_TOKENS, ignore_eos=True)
        for contender in self.contenders:
            try:
                contender.generate(replace(request, ids=request.ids[:512], options=options))
            except Exception:  # noqa: S112
                continue

    def _play(
        self,
        contender: Contender,
        entry: Entry,
        request: Request,
        done: dict[tuple[object, ...], Entry | LeftOut],
    ) -> Entry:
        meter = peak_meter(getattr(self.session.target, "device", torch.device("cpu")))
        try:
            trial = contender.generate(request)
        except Exception as error:
            return replace(entry, error=_sentence(error))
        entry = replace(entry, peak_bytes=meter())
        first = done.get((*entry.key, 0, PLAIN))
        plain = first.output if isinstance(first, Entry) else None
        entry = replace(entry, **completed(entry, trial, plain))
        if plain is None or entry.output is None:
            return entry
        return replace(entry, difference=self._difference(request.ids, plain, trial.output))

    def _difference(
        self, ids: Sequence[int], plain: Sequence[int], other: Sequence[int]
    ) -> Difference:
        shared = min(len(plain), len(other))
        place = next((i for i in range(shared) if plain[i] != other[i]), shared)
        if place == shared:
            return Difference(place, [*plain, None][place], [*other, None][place], None)
        self.session.target.sync([[*ids, *plain[:place]]])
        row = self.session.target.score([EMPTY])[0][0]
        gap = float(row[plain[place]] - row[other[place]])
        return Difference(place, plain[place], other[place], gap)

    def _note_left_out(
        self, text: Text, done: dict[tuple[object, ...], Entry | LeftOut], sink: Sink
    ) -> None:
        """Say which turns could not be run: the prompt is too long, or plain decoding failed."""
        record = text.record
        turns = 1 if self._is_raw(text) else len(record.turns)
        for turn in range(turns):
            first = done.get((text.suite, record.id, turn, 0, PLAIN))
            if first is None:
                before = done.get((text.suite, record.id, turn - 1, 0, PLAIN))
                failed = isinstance(before, Entry) and before.error
                reason = (
                    "plain decoding failed before it"
                    if failed
                    else f"prompt and {self.options.max_new_tokens} new tokens do not fit into "
                    f"the model's context of {self.session.target.max_context}"
                )
                left_out = LeftOut(text.suite, record.task, record.id, turn, reason)
                if _name(left_out) not in done:
                    done[_name(left_out)] = left_out
                    sink.append(left_out)
                break


def in_turns(contenders: Sequence[Contender], start: int) -> list[Contender]:
    """All of them, beginning with another one for every `start`."""
    start %= max(1, len(contenders))
    return [*contenders[start:], *contenders[:start]]


def _name(entry: Entry | LeftOut) -> tuple[object, ...]:
    """What makes an entry another one than any other of its run."""
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
