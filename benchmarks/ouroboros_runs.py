"""Contenders that keep what they learn from text to text, and their figures by task.

Each has its own drafter, draft model cache, phrases and planner. All write their next text in
turns, so that each meets every state of the machine. Figures leave out the first round of a text,
which reads the prompt, so contenders may share prompts in the target's cache.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from paceline.bench.comparison import in_turns, next_scores
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
        """The sums and figures derived from them, rounded to meaningful digits."""
        passes, draft_passes = self.rounds, self.draft_widths.total()
        return {
            "tokens": self.tokens,
            "passes": passes,
            "draft_passes": draft_passes,
            "seconds": round(self.wall, 4),
            "tokens_per_second": round(self.tokens / self.wall, 4) if self.wall else None,
            "tokens_per_pass": round(self.tokens / passes, 4) if passes else None,
            "accepted": self.tokens - passes,
            "shares": {
                part: round(getattr(self, f"{part}_seconds") / self.wall, 4)
                for part in ("draft", "target", "commit")
                if self.wall
            },
            "ms_per_pass": round(1e3 * self.target_seconds / passes, 3) if passes else None,
            "ms_per_draft_pass": round(1e3 * self.draft_seconds / draft_passes, 3)
            if draft_passes
            else None,
            "gained": dict(sorted(self.acceptance_histogram.items())),
            "widths": dict(sorted(self.widths.items())),
            "draft_widths": dict(sorted(self.draft_widths.items())),
        }


@dataclass
class Text:
    """A prompt and its token ids."""

    record: PromptRecord
    ids: list[int]


@dataclass
class Contender:
    """A method and its figures so far.

    texts: in the order in which it writes them.
    fixed: trees have a fixed budget, as in the paper; otherwise the planner sizes them.
    marks: token counts at which figures are also recorded.
    """

    name: str
    method: str
    session: Session
    texts: Sequence[Text]
    fixed: bool = True
    temperature: float = 0.0
    seed: int = 0
    marks: Sequence[int] = ()
    by_task: dict[str, Figures] = field(default_factory=dict)
    by_mark: dict[int, Figures] = field(default_factory=dict)
    by_text: dict[str, tuple[int, float]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    first_seconds: float = 0.0
    drafter: Drafter = field(init=False)

    def __post_init__(self) -> None:
        self.drafter = make_drafter(self.method, self.session.host.fresh())
        self.planner = FixedBudget(TARGET_BUDGET) if self.fixed else self.session.new_planner()

    @property
    def sampler(self) -> Sampler:
        """The sampler that draws its tokens."""
        return Sampler(seed=self.seed, temperature=self.temperature)

    def play(self, place: int, tokens: int) -> None:
        """Write the text at `place`, at most `tokens` tokens."""
        text = self.texts[place]
        stopping = Stopping(tokens, self.session.eos_ids)
        generation = Generation(text.ids, self.drafter, stopping, self.sampler)
        figures = Figures()
        last, known = perf_counter(), self._draft_widths()
        for done in decode(self.session.target, [generation], self.planner):
            now, widths = perf_counter(), self._draft_widths()
            if done.first:
                self.first_seconds += now - last
            else:
                figures.add(done)
                figures.wall += now - last
                figures.widths[1 + len(done.tree)] += 1
                figures.draft_widths += widths - known
            self._mark(len(generation.output), len(done.path.tokens), figures)
            last, known = perf_counter(), widths
        for mark in self.marks:
            if len(generation.output) < mark:  # the text ended earlier
                self.by_mark.setdefault(mark, Figures()).merge(figures)
        self.by_task.setdefault(text.record.task, Figures()).merge(figures)
        self.by_text[text.record.id] = figures.tokens, round(figures.wall, 4)
        self.outputs[text.record.id] = generation.output

    def add(self, other: Contender) -> None:
        """Add the figures of another run, which began with nothing learned."""
        self.first_seconds += other.first_seconds
        for own, found in ((self.by_task, other.by_task), (self.by_mark, other.by_mark)):
            for key, figures in found.items():
                own.setdefault(key, Figures()).merge(figures)
        for name, (tokens, seconds) in other.by_text.items():
            known = self.by_text.get(name, (0, 0.0))
            self.by_text[name] = known[0] + tokens, round(known[1] + seconds, 4)

    def as_json(self) -> dict[str, Any]:
        """All its figures."""
        whole = Figures()
        for figures in self.by_task.values():
            whole.merge(figures)
        return {
            "name": self.name,
            "method": self.method,
            "planned": not self.fixed,
            "temperature": self.temperature,
            **whole.as_json(),
            "first_seconds": round(self.first_seconds, 4),
            "phrases": len(getattr(self.drafter, "pool", ())),
            "tasks": {task: figures.as_json() for task, figures in self.by_task.items()},
            "texts": self.by_text,
            "lengths": {mark: figures.as_json() for mark, figures in self.by_mark.items()},
        }

    def _draft_widths(self) -> Counter[int]:
        return Counter(getattr(self.drafter, "widths", ()))

    def _mark(self, written: int, gained: int, figures: Figures) -> None:
        """Record the figures if a round reaches a mark."""
        for mark in self.marks:
            if written - gained < mark <= written:
                self.by_mark.setdefault(mark, Figures()).merge(figures)


def texts_of(session: Session, records: Sequence[PromptRecord], longest: int) -> list[Text]:
    """The first turns of prompts, each cut to its last `longest` tokens."""
    texts = []
    for record in records:
        prompt = record.turns[0]
        ids = session.encode(prompt if record.raw else [{"role": "user", "content": prompt}])
        texts.append(Text(record, ids[-longest:]))
    return texts


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
    return [found for one in contenders for found in _differences(one, contenders)]


def _differences(one: Contender, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    plain = next(
        other
        for other in contenders
        if other.method == "plain" and other.temperature == one.temperature
    )
    ids = {text.record.id: text.ids for text in one.texts}
    return [
        {"contender": one.name, "temperature": one.temperature, "text": name}
        | _parting(one, ids[name], plain.outputs[name], output)
        for name, output in one.outputs.items()
        if output != plain.outputs[name]
    ]


def _parting(
    one: Contender, ids: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> dict[str, Any]:
    """Where two texts diverge, and the gap between the deciding scores there."""
    pairs = enumerate(zip(plain, other))
    place = next((place for place, (said, got) in pairs if said != got), None)
    if place is None:
        return {"place": min(len(plain), len(other)), "gap": None}
    context = [*ids, *plain[:place]]
    scores = one.sampler.decide(next_scores(one.session.target, context), context)
    return {"place": place, "gap": float(scores[plain[place]] - scores[other[place]])}
