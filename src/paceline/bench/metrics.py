"""Summaries of trials: speed-ups with intervals, acceptance, memory, identity.

Speed-up: the method's tokens per second over plain decoding's, on the same texts. A text's time is
the median of its trials. The interval comes from resampling prompts in pairs, with all their turns.
Texts on which either failed do not count for that method.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from statistics import mean, median

from paceline.bench.entries import Difference, Entry, Key, LeftOut
from paceline.bench.text_times import TextTimes, by_prompt, decode_ratio, speedup_interval
from paceline.bench.trial import PLAIN
from paceline.stats import Stats

# Greedy output of small models often loops, and every method that copies from the text guesses
# loops perfectly. Results are shown with and without such texts.
_RUN = 20
LOOPING = 0.2
"""Least share for a text to count as looping; code sometimes repeats a line of twenty tokens."""

Cell = Mapping[str, Sequence[Entry]]
"""Method -> its trials on one text."""


@dataclass(frozen=True)
class MethodSummary:
    """The results of one method on the texts of a group.

    texts: on which both it and plain decoding succeeded; failures: reasons by text.
    tokens, seconds: sums over texts, of the first trial's tokens and of the median time.
    speedup: over plain decoding; decode_speedup: the same after the prompt, None if nothing was
    generated after the first pass.
    mean_of_ratios: speed-up as Spec-Bench computes it, a ratio of mean speeds over questions.
    stats, first_seconds: sums over the first trials.
    peak_over_plain: memory (`Entry.peak_bytes`) minus plain decoding's, median over texts, in bytes.
    differences: text -> where its output differs from plain decoding's, over all trials.
    lossy: its outputs may differ by design and were not compared, see `Trial`.
    speedups: text -> speed-up. times: text -> median seconds. prompt_times: by prompt, of the
    method and of plain decoding.
    """

    method: str
    texts: int
    tokens: int
    seconds: float
    speedup: float
    decode_speedup: float | None
    mean_of_ratios: float
    stats: Stats
    first_seconds: float
    peak_over_plain: float | None
    loop_share: float
    prompt_times: tuple[list[TextTimes], list[TextTimes]]
    differences: dict[Key, list[Difference]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)
    speedups: dict[Key, float] = field(default_factory=dict)
    times: dict[Key, float] = field(default_factory=dict)
    lossy: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Over whole requests, prefill included."""
        return self.tokens / self.seconds

    @property
    def prompts(self) -> int:
        """How many the texts answer; with one alone there is no interval."""
        return len(self.prompt_times[0])

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the speed-up; prompts are resampled."""
        return speedup_interval(
            [(a.tokens, a.seconds, b.tokens, b.seconds) for a, b in zip(*self.prompt_times)]
        )

    @property
    def sure(self) -> str:
        """The interval as a cell."""
        low, high = self.interval
        return f"{low:.2f}–{high:.2f}" if self.prompts > 1 else "-"

    @property
    def places(self) -> list[tuple[Key, Difference]]:
        """Where its outputs differ from plain decoding's, every place once."""
        return [
            (key, one) for key, found in self.differences.items() for one in dict.fromkeys(found)
        ]

    @property
    def identical(self) -> bool:
        """Whether every output equals plain decoding's, token for token; never if lossy."""
        return not (self.differences or self.lossy)


@dataclass(frozen=True)
class Group:
    """Texts of one task.

    name: "suite", or "suite/task" if a suite has several tasks; looping: number of texts on which
    plain decoding loops.
    methods: those that succeeded on at least one text.
    failed: methods that succeeded on none, with a reason.
    """

    name: str
    texts: int
    looping: int
    methods: dict[str, MethodSummary]
    failed: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """Texts, overall and by task.

    calm: those that do not loop; None if all or none do. left_out: texts that were not run.
    """

    overall: Group
    groups: list[Group]
    calm: Summary | None
    left_out: list[LeftOut]


def summarise(lines: Iterable[Entry | LeftOut]) -> Summary:
    """Summarise a run. Raises ValueError if it has no trial of plain decoding."""
    lines = list(lines)
    left_out = [line for line in lines if isinstance(line, LeftOut)]
    cells = by_text(line for line in lines if isinstance(line, Entry))
    if not any(PLAIN in cell for cell in cells.values()):
        why = f" (left out: {left_out[0].reason})" if left_out else ""
        raise ValueError(f"no trial of plain decoding: there is nothing to compare with{why}")
    calm = {key: cell for key, cell in cells.items() if not _loops(cell)}
    apart = None
    if 0 < len(calm) < len(cells):
        apart = Summary(_group("overall", calm), _by_task(calm), None, [])
    return Summary(_group("overall", cells), _by_task(cells), apart, left_out)


def by_text(entries: Iterable[Entry]) -> dict[Key, Cell]:
    """Text -> method, by first appearance -> its trials, by repeat."""
    cells: dict[Key, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in sorted(entries, key=lambda entry: entry.repeat):
        cells[entry.key][entry.method].append(entry)
    order = dict.fromkeys(method for cell in cells.values() for method in cell)
    return {
        key: {method: cell[method] for method in order if method in cell}
        for key, cell in cells.items()
    }


def loop_share(tokens: Sequence[int]) -> float:
    """The share of tokens inside a run of twenty that occurs more than once in the text."""
    runs = [tuple(tokens[begin : begin + _RUN]) for begin in range(len(tokens) - _RUN + 1)]
    often = Counter(runs)
    inside = {
        begin + step for begin, run in enumerate(runs) if often[run] > 1 for step in range(_RUN)
    }
    return len(inside) / len(tokens) if tokens else 0.0


def _loops(cell: Cell) -> bool:
    return any(trial.loop_share >= LOOPING for trial in cell.get(PLAIN, ())[:1])


def _by_task(cells: Mapping[Key, Cell]) -> list[Group]:
    found: dict[tuple[str, str], dict[Key, Cell]] = defaultdict(dict)
    for key, cell in cells.items():
        found[key[0], next(iter(cell.values()))[0].task][key] = cell
    tasks = Counter(suite for suite, _ in found)
    return [
        _group(f"{suite}/{task}" if tasks[suite] > 1 else suite, texts)
        for (suite, task), texts in found.items()
    ]


def _group(name: str, cells: Mapping[Key, Cell]) -> Group:
    summaries: dict[str, MethodSummary] = {}
    failed: dict[str, str] = {}
    for method in dict.fromkeys(method for cell in cells.values() for method in cell):
        failures = {
            key: trial.error
            for key, cell in cells.items()
            for trial in cell.get(method, ())
            if trial.error
        }
        both = {
            key: cell
            for key, cell in cells.items()
            if _came_through(cell, method) and _came_through(cell, PLAIN)
        }
        if both:
            summaries[method] = _summary(method, both, failures)
        else:
            failed[method] = next(iter(failures.values()), "plain decoding did not finish")
    return Group(name, len(cells), sum(map(_loops, cells.values())), summaries, failed)


def _came_through(cell: Cell, method: str) -> bool:
    trials = cell.get(method, ())
    return bool(trials) and not any(trial.error for trial in trials)


def _summary(method: str, cells: Mapping[Key, Cell], failures: dict[Key, str]) -> MethodSummary:
    own = [TextTimes.of(cell[method]) for cell in cells.values()]
    plain = [TextTimes.of(cell[PLAIN]) for cell in cells.values()]
    whole, base = reduce(add, own), reduce(add, plain)
    firsts = [cell[method][0] for cell in cells.values()]
    prompts = by_prompt(firsts, own), by_prompt(firsts, plain)
    stats = Stats()
    for trial in firsts:
        stats.merge(trial.stats)
    in_loops = sum(trial.loop_share * trial.tokens for trial in firsts)
    return MethodSummary(
        method=method,
        texts=len(cells),
        tokens=whole.tokens,
        seconds=whole.seconds,
        speedup=whole.speed / base.speed,
        decode_speedup=decode_ratio(whole, base, len(plain)),
        mean_of_ratios=mean(p.speed for p in prompts[0]) / mean(p.speed for p in prompts[1]),
        stats=stats,
        first_seconds=sum(trial.seconds for trial in firsts),
        peak_over_plain=_peak_over_plain(cells.values(), method),
        loop_share=in_loops / whole.tokens if whole.tokens else 0.0,
        prompt_times=prompts,
        differences={
            key: found
            for key, cell in cells.items()
            if (found := [trial.difference for trial in cell[method] if trial.difference])
        },
        failures=failures,
        speedups={key: a.speed / b.speed for key, a, b in zip(cells, own, plain)},
        times={key: each.seconds for key, each in zip(cells, own)},
        lossy=any(trial.lossy for cell in cells.values() for trial in cell[method]),
    )


def _peak_over_plain(cells: Iterable[Cell], method: str) -> float | None:
    extra = []
    for cell in cells:
        own, plain = (
            [trial.peak_bytes for trial in cell[name] if trial.peak_bytes is not None]
            for name in (method, PLAIN)
        )
        if own and plain:
            extra.append(median(own) - median(plain))
    return median(extra) if extra else None
