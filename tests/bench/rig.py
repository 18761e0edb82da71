"""A measuring room where all is known beforehand: a toy with a clock of its own, planned drafters.

Costs are whole numbers of 64ths of a second, so that sums of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch

from paceline.bench.comparison import Comparison
from paceline.bench.entries import Entry, LeftOut
from paceline.bench.suites import Text
from paceline.bench.trial import Contender, Method, Request, Trial
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.records import TextStart
from paceline.session import Session
from paceline.stats import Stats
from paceline.targets.toy import ToyTarget, _Slot
from paceline.tree import Tree
from tests.helpers import Hostile

EOS = 256
READ = 1 / 64
"""Seconds to read a token of the prompt."""


def cost(width: int) -> float:
    """Seconds of a pass over so many tokens."""
    return 1 + width / 8


class ClockedTarget(ToyTarget):
    """A toy that can be slow or wrong.

    now: what its clock shows; it moves in passes only.
    pause: more seconds for every pass.
    wrong_at: length of the text whose next token is another than it should be, in passes that
    score a tree; always: in passes without a tree as well.
    """

    def __init__(self) -> None:
        super().__init__(EOS + 1, order=2, sharpness=3.0, max_context=4096)
        self.now = 0.0
        self.pause = 0.0
        self.wrong_at: int | None = None
        self.always = False
        self.opened: list[tuple[list[int], int]] = []

    def clock(self) -> float:
        return self.now

    def open(self, context: Sequence[int]) -> int:
        slot = super().open(context)
        self.opened.append((list(context), len(context) - 1 - self.pending(slot)))
        return slot

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        before = self.read
        rows = super().score(trees, prefill)
        self.now += sum(cost(1 + len(tree)) for tree in trees.values()) + self.pause
        self.now += (self.read - before) * READ
        return rows

    def _score_one(self, slot: _Slot, tree: Tree) -> torch.Tensor:
        rows = super()._score_one(slot, tree)
        length = len(slot.cached) + len(slot.pending)
        if length == self.wrong_at and (self.always or len(tree)):
            rows = rows.clone()
            rows[0, runner_up(rows[0])] = 100.0
        return rows


def runner_up(row: torch.Tensor) -> int:
    return int(row.topk(2).indices[1])


class Letters:
    """A tokenizer of bytes that needs no library."""

    chat_template = "yes"

    def __call__(self, text: str, add_special_tokens: bool = False) -> Any:
        return SimpleNamespace(input_ids=list(text.encode()))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **settings: object) -> str:
        return "".join(f"<{each['role']}>{each['content']}\n" for each in messages) + "<assistant>"

    def decode(self, tokens: Sequence[int], **settings: object) -> str:
        return bytes(token for token in tokens if token < EOS).decode(errors="replace")


def clocked_session() -> tuple[Session, ClockedTarget]:
    target = ClockedTarget()
    letters: Any = Letters()
    return Session(target, letters, "plain", eos_ids=[EOS]), target


Script = Sequence[tuple[int, int]]
"""Round after round, from the start again at its end: how many guesses, how many of them right."""


class Scripted(Hostile):
    """Knows its texts, and guesses as right and wrong as it is told.

    stories: prompt -> what plain decoding writes, and the script to guess it by.
    """

    def __init__(self, stories: Mapping[tuple[int, ...], tuple[Sequence[int], Script]]) -> None:
        super().__init__(EOS)
        self._stories = stories
        self._rounds = 0

    def start(self, text: TextStart) -> None:
        super().start(text)
        tokens, self._script = self._stories[tuple(text.context)]
        self._story = [*text.context, *tokens]
        self._rounds = 0

    def propose(self, budget: int) -> Tree:
        guesses, right = self._script[self._rounds % len(self._script)]
        self._rounds += 1
        coming = self._story[len(self.text) :][: min(guesses, budget)]
        return Tree.chain(
            [
                token if place < right else (token + 1) % self.vocab_size
                for place, token in enumerate(coming)
            ]
        )


@dataclass
class Fixed:
    """A contender that hands out what it is told, or fails.

    outputs: one after the other, the last one for ever; an error is raised.
    """

    name: str
    outputs: list[Sequence[int] | BaseException]
    seconds: float = 1.0
    loaded: int = 0

    def generate(self, request: Request) -> Trial:
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        if isinstance(output, BaseException):
            raise output
        return Trial(list(output), self.seconds, Stats(tokens=len(output), rounds=len(output)))


def comparison(
    session: Session,
    contenders: Sequence[str | Contender],
    prompts: Sequence[PromptRecord],
    options: Options,
    repeats: int = 1,
) -> Comparison:
    """Contenders may be named, and plain decoding goes without saying."""
    clock = getattr(session.target, "clock", perf_counter)
    if not contenders or "plain" not in (contenders[0], getattr(contenders[0], "name", "")):
        contenders = ["plain", *contenders]
    made = [Method(each, session, clock) if isinstance(each, str) else each for each in contenders]
    return Comparison(session, made, [Text("suite", each) for each in prompts], options, repeats)


def lines_of(
    comparison: Comparison, on_trial: Callable[[], None] = lambda: None
) -> tuple[list[Entry], list[LeftOut]]:
    """What a run writes."""
    lines: list[Entry | LeftOut] = []
    comparison.run(lines, on_trial)
    return (
        [line for line in lines if isinstance(line, Entry)],
        [line for line in lines if isinstance(line, LeftOut)],
    )
