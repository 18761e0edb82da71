"""Contenders that keep what they learn from text to text, and their figures by task.

Each has its own drafter, draft model cache, phrases and planner. All write their next text in
turns, so that each meets every state of the machine. Figures leave out the first round of a text,
which reads the prompt, so contenders may share prompts in the target's cache.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from paceline.bench.comparison import difference, in_turns
from paceline.drafters import make_drafter
from paceline.loop import FixedBudget, Generation, decode
from paceline.prompts import PromptRecord
from paceline.protocols import Drafter
from paceline.sampling import Sampler
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping

TARGET_BUDGET = 64
"""Most nodes of a fixed tree: windows of 7 columns with 5 levels and 7 phrases have 55."""
PARTS = ("draft", "target", "commit")


@dataclass
class Figures(Stats):
    """Sums over the rounds after the first of each text.

    wall: seconds of everything, planning included. widths, draft_widths: rows of a pass -> passes
    of the target and of the draft model.
    """

    wall: float = 0.0
    widths: Counter[int] = field(default_factory=Counter)
    draft_widths: Counter[int] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """The sums and figures derived from them, rounded to meaningful digits; None where they are
        sums over nothing."""
        passes, draft_passes = self.rounds, self.draft_widths.total()

        def over(sum: float, count: float, digits: int = 4) -> float | None:
            return round(sum / count, digits) if count else None

        return {
            "tokens": self.tokens,
            "passes": passes,
            "draft_passes": draft_passes,
            "seconds": round(self.wall, 4),
            "tokens_per_second": over(self.tokens, self.wall),
            "tokens_per_pass": over(self.tokens, passes),
            "shares": {name: over(getattr(self, f"{name}_seconds"), self.wall) for name in PARTS},
            "ms_per_pass": over(1e3 * self.target_seconds, passes, 3),
            "ms_per_draft_pass": over(1e3 * self.draft_seconds, draft_passes, 3),
            "gained": dict(sorted(self.acceptance_histogram.items())),
            "widths": dict(sorted(self.widths.items())),
            "draft_widths": dict(sorted(self.draft_widths.items())),
        }


@dataclass
class Text:
    """A prompt and its token ids."""

    record: PromptRecord
    ids: list[int]


def _sums() -> dict[str, dict[Any, Figures]]:
    return {by: defaultdict(Figures) for by in ("tasks", "texts", "lengths")}


@dataclass
class Contender:
    """A method and its figures so far.

    texts: in the order in which it writes them.
    fixed: trees have a fixed budget, as in the paper; otherwise the planner sizes them.
    marks: token counts at which figures are also recorded, as "lengths".
    """

    name: str
    method: str
    session: Session
    texts: Sequence[Text]
    fixed: bool = True
    temperature: float = 0.0
    seed: int = 0
    marks: Sequence[int] = ()
    sums: dict[str, dict[Any, Figures]] = field(default_factory=_sums)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    drafter: Drafter = field(init=False)

    def __post_init__(self) -> None:
        self.drafter = make_drafter(self.method, self.session.host.fresh())
        self.planner = FixedBudget(TARGET_BUDGET) if self.fixed else self.session.new_planner()

    def play(self, place: int, tokens: int) -> None:
        """Write the text at `place`, at most `tokens` tokens."""
        text, figures, marks = self.texts[place], Figures(), sorted(self.marks)
        stopping = Stopping(tokens, self.session.eos_ids)
        sampler = Sampler(seed=self.seed, temperature=self.temperature)
        generation = Generation(text.ids, self.drafter, stopping, sampler)
        last, known = perf_counter(), self._draft_widths()
        for done in decode(self.session.target, [generation], self.planner):
            now, widths = perf_counter(), self._draft_widths()
            if not done.first:
                figures.add(done)
                figures.wall += now - last
                figures.widths[1 + len(done.tree)] += 1
                figures.draft_widths += widths - known
            while marks and marks[0] <= len(generation.output):
                self.sums["lengths"][marks.pop(0)].merge(figures)
            last, known = perf_counter(), widths
        for mark in marks:  # the text ended earlier
            self.sums["lengths"][mark].merge(figures)
        self.sums["tasks"][text.record.task].merge(figures)
        self.sums["texts"][text.record.id].merge(figures)
        self.outputs[text.record.id] = generation.output

    def add(self, other: Contender) -> None:
        """Add the figures of another run, which began with nothing learned."""
        for by, sums in other.sums.items():
            for key, figures in sums.items():
                self.sums[by][key].merge(figures)

    def as_json(self) -> dict[str, Any]:
        """All its figures."""
        whole = Figures()
        for figures in self.sums["tasks"].values():
            whole.merge(figures)
        return {
            "name": self.name,
            "method": self.method,
            "planned": not self.fixed,
            "temperature": self.temperature,
            **whole.as_json(),
            **{by: {key: figures.as_json() for key, figures in self.sums[by].items()}
               for by in ("tasks", "lengths")},
            "texts": {key: (each.tokens, round(each.wall, 4)) for key, each in self.sums["texts"].items()},
        }  # fmt: skip

    def _draft_widths(self) -> Counter[int]:
        return Counter(getattr(self.drafter, "widths", ()))


def play_all(contenders: Sequence[Contender], tokens: int) -> list[dict[str, Any]]:
    """Run all contenders on all their texts, in turns; return where texts differ from plain's.

    Plain decoding at the same temperature must be among them, as the method "plain".
    """
    count = len(contenders[0].texts)
    for place in range(count):
        began = perf_counter()
        for one in in_turns(contenders, place):
            one.play(place, tokens)
        spent = perf_counter() - began
        print(f"text {place + 1} of {count}: {spent:.0f} s", file=sys.stderr, flush=True)
    plain = {one.temperature: one for one in contenders if one.method == "plain"}
    pairs = ((one, plain[one.temperature].outputs) for one in contenders)
    return [found for one, outputs in pairs for found in differences(one, outputs)]


def differences(one: Contender, plain: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Where its texts differ from plain decoding's."""
    about, target = {"contender": one.name, "temperature": one.temperature}, one.session.target
    return [
        {**about, "text": name, **asdict(difference(target, text.ids, plain[name], output))}
        for text in one.texts
        if (output := one.outputs[name := text.record.id]) != plain[name]
    ]
