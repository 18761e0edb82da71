"""Tables of numbers: overall, by task, acceptance by position, time by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median

from paceline.bench.metrics import Group, MethodSummary
from paceline.bench.report import words
from paceline.bench.report.folder import Run
from paceline.bench.trial import PLAIN
from paceline.tables import Cell, Table, count

__all__ = [
    "PARTS",
    "acceptance",
    "guessing",
    "milliseconds_per_token",
    "overall",
    "positions",
    "sources",
    "tasks",
    "time",
    "twice",
]

PARTS = ("prefill", "draft", "target", "commit", "rest")
_POSITIONS = 16

_MISSING = Cell(words.NOTHING)

_OVERALL = (
    "method",
    "texts",
    "tokens/s",
    "speed-up",
    "after the prompt",
    "ratio of means",
    "acceptance length",
    "draft hit ratio",
    "memory over plain, MB",
    "in loops",
    "same text",
    "failed",
)


def twice(run: Run, make: Callable[[str, Sequence[Group]], Table | None]) -> list[Table]:
    """Make a table of all texts and, if some loop, one of those that do not.

    make: takes a caption and groups, the first one overall and the others by task.
    """
    summary = run.summary
    groups = [summary.overall, *summary.groups]
    found = [make(f"All {count(summary.overall.texts, 'text')}", groups)]
    calm = summary.overall_without_loops
    if calm is not None and summary.overall.looping:
        caption = f"Without looping outputs: {count(calm.texts, 'text')}"
        found.append(make(caption, [calm, *summary.groups_without_loops]))
    return [table for table in found if table is not None]


def overall(caption: str, groups: Sequence[Group]) -> Table:
    """One row per method over all texts."""
    group = groups[0]
    rows = [_overall_row(method) for method in group.methods.values()]
    rows += [
        [Cell(name), Cell("0"), *[_MISSING] * (len(_OVERALL) - 3), Cell("all")]
        for name in group.failed
    ]
    return Table(caption, _OVERALL, rows)


def _overall_row(method: MethodSummary) -> list[Cell]:
    stats = method.stats
    memory = method.peak_over_plain
    return [
        Cell(method.method),
        Cell(str(method.texts)),
        Cell(words.rate(method.tokens_per_second)),
        _speedup(method),
        _MISSING if method.decode_speedup is None else Cell(words.times(method.decode_speedup)),
        Cell(words.times(method.mean_of_ratios)),
        Cell(f"{stats.mean_acceptance_length:.2f}") if stats.rounds else _MISSING,
        Cell(words.percent(stats.draft_acceptance_rate)) if stats.drafted else _MISSING,
        _MISSING if memory is None or method.method == PLAIN else Cell(f"{memory / 1e6:+.1f}"),
        Cell(words.percent(method.loop_share)),
        _same(method),
        Cell(str(len(method.failures))),
    ]


def _same(method: MethodSummary) -> Cell:
    if method.lossy:
        return Cell("lossy")
    if method.identical:
        return Cell("yes")
    gap = words.largest_gap(list(chain.from_iterable(method.differences.values())))
    detail = "one ends" if gap is None else f"gap up to {words.gap(gap)}"
    return Cell(f"no, {count(len(method.differences), 'text')}", detail)


def tasks(caption: str, groups: Sequence[Group]) -> Table:
    """One row per task, one column per method."""
    everyone, *by_task = groups
    methods = [name for name in everyone.methods if name != PLAIN]
    rows = [
        [
            Cell(group.name),
            Cell(str(group.texts)),
            Cell(str(group.looping)),
            *(
                _speedup(group.methods[name]) if name in group.methods else _MISSING
                for name in methods
            ),
        ]
        for group in (*by_task, everyone)
    ]
    return Table(caption, ["task", "texts", "looping", *methods], rows)


def _speedup(method: MethodSummary) -> Cell:
    return Cell(words.times(method.speedup), words.interval(method), words.tone(method))


def guessing(group: Group) -> Mapping[str, MethodSummary]:
    """The methods that guessed something and whose rounds are known."""
    return {
        name: method
        for name, method in group.methods.items()
        if method.stats.acceptance_histogram and method.stats.triggers
    }


def acceptance(caption: str, groups: Sequence[Group]) -> Table | None:
    """One row per method: tokens gained per round."""
    found = guessing(groups[0])
    if not found:
        return None
    headings = ["method", "rounds", "with guesses", "mean", "median", "most", "gained 1 token"]
    rows = []
    for name, method in found.items():
        stats = method.stats
        gained = sorted(stats.acceptance_histogram.elements())
        rows.append(
            [
                Cell(name),
                Cell(str(stats.rounds)),
                Cell(words.percent(stats.triggers / stats.rounds)),
                Cell(f"{stats.mean_acceptance_length:.2f}"),
                Cell(f"{median(gained):g}"),
                Cell(str(gained[-1])),
                Cell(words.percent(stats.acceptance_histogram[1] / len(gained))),
            ]
        )
    return Table(f"{caption}: tokens gained per round", headings, rows)


def positions(caption: str, groups: Sequence[Group]) -> Table | None:
    """One row per method, one column per position of a guess in its chain."""
    shares = {
        name: method.stats.acceptance_by_position for name, method in guessing(groups[0]).items()
    }
    if not shares:
        return None
    deepest = max(map(len, shares.values()))
    shown = min(deepest, _POSITIONS)
    rows = [
        [
            Cell(name),
            *(Cell(words.percent(share)) for share in found[:shown]),
            *[_MISSING] * (shown - len(found)),
        ]
        for name, found in shares.items()
    ]
    note = "Share of guesses that were accepted, in rounds that guessed that far ahead."
    if deepest > shown:
        note += f" Positions up to {deepest} were guessed; the plot has them all."
    headings = ["method", *(str(place) for place in range(1, shown + 1))]
    return Table(f"{caption}: guesses accepted, by position", headings, rows, note=note)


def sources(caption: str, groups: Sequence[Group]) -> Table | None:
    """One row per source of each method that has sources; see `SourceStats`."""
    rows = [
        [
            Cell(name),
            Cell(source),
            Cell(words.percent(did.asked / did.rounds)),
            *(Cell(f"{n:,}") for n in (did.proposed, did.scored, did.accepted, did.gained)),
            Cell(f"{1e3 * did.seconds / did.rounds:.2f}"),
            Cell(words.percent(did.seconds / method.stats.seconds)),
        ]
        for name, method in groups[0].methods.items()
        for source, did in method.stats.sources.items()
        if did.rounds and method.stats.seconds
    ]
    if not rows:
        return None
    headings = ["method", "source", "rounds asked", "proposed", "scored", "accepted", "gained"]
    headings += ["ms per round", "share of time"]
    note = (
        "Scored: proposed nodes that were left after trees were cut to what pays off. Accepted: "
        "other sources may have proposed these nodes, too. Gained: tokens that would be missing "
        "without the source. Time: of asking the source and of telling it what was written."
    )
    return Table(f"{caption}: guesses by source", headings, rows, left=2, note=note)


def time(run: Run) -> Callable[[str, Sequence[Group]], Table]:
    """Milliseconds per token, one row per method."""

    def make(caption: str, groups: Sequence[Group]) -> Table:
        rows = [
            [
                Cell(name),
                *(Cell(f"{spent:.2f}") for spent in (*parts.values(), sum(parts.values()))),
            ]
            for name, parts in milliseconds_per_token(run, groups[0]).items()
        ]
        return Table(f"{caption}: milliseconds per token", ["method", *PARTS, "all"], rows)

    return make


def milliseconds_per_token(run: Run, group: Group) -> dict[str, dict[str, float]]:
    """Method -> part -> time of the first trials; "rest" is what no part accounts for."""
    found = {}
    for name, method in group.methods.items():
        trials = [run.first_trials[*key, name] for key in method.speedups]
        tokens = sum(trial.tokens for trial in trials)
        seconds = {
            part: sum(getattr(trial.stats, f"{part}_seconds") for trial in trials)
            for part in PARTS[:-1]
        }
        everything = sum(trial.seconds for trial in trials)
        seconds["rest"] = max(0.0, everything - sum(seconds.values()))
        found[name] = {part: 1000 * spent / max(1, tokens) for part, spent in seconds.items()}
    return found
