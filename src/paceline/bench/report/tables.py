"""Tables of numbers: overall, by task, acceptance by position, time by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from paceline.bench.entries import PARTS, seconds_by_part
from paceline.bench.metrics import Group, MethodSummary, Summary
from paceline.bench.report import words
from paceline.bench.report.words import NOTHING
from paceline.bench.trial import PLAIN
from paceline.tables import Cell, Columns, Table, count

ALL_PARTS = (*PARTS, "rest")
_POSITIONS = 16


def twice(summary: Summary, make: Callable[[str, Summary], Table]) -> list[Table]:
    """Make a table of all texts and, if some loop, one of those that do not. make: takes a
    caption and a summary."""
    found = [make(f"All {count(summary.overall.texts, 'text')}", summary)]
    if summary.calm is not None:
        texts = count(summary.calm.overall.texts, "text")
        found.append(make(f"Without looping outputs: {texts}", summary.calm))
    return [table for table in found if table.rows]


def overall(caption: str, summary: Summary) -> Table:
    """One row per method over all texts."""
    group = summary.overall
    table = Table.of(caption, _OVERALL, group.methods.values())
    nothing = [NOTHING] * (len(_OVERALL) - 3)
    failed = [[name, "0", *nothing, "all"] for name in group.failed]
    return replace(table, rows=[*table.rows, *failed])


def hit_ratio(method: MethodSummary) -> str:
    """The share of its guesses that were accepted, as a cell."""
    stats = method.stats
    return f"{stats.draft_acceptance_rate:.0%}" if stats.drafted else NOTHING


def _memory(method: MethodSummary) -> str:
    memory = method.peak_over_plain
    return NOTHING if memory is None or method.method == PLAIN else f"{memory / 1e6:+.1f}"


def _same(method: MethodSummary) -> Cell:
    if method.lossy:
        return Cell("lossy")
    if method.identical:
        return Cell("yes")
    gap = words.largest_gap(method)
    detail = "one ends" if gap is None else f"gap up to {words.short(gap)}"
    return Cell(f"no, {count(len(method.differences), 'text')}", detail)


_OVERALL: Columns[MethodSummary] = {
    "method": lambda one: one.method,
    "texts": lambda one: str(one.texts),
    "tokens/s": lambda one: words.rate(one.tokens_per_second),
    "speed-up": words.speedup,
    "after the prompt": lambda one: words.known(one.decode_speedup, words.times),
    "ratio of means": lambda one: words.times(one.mean_of_ratios),
    "acceptance length": lambda one: (
        f"{one.stats.mean_acceptance_length:.2f}" if one.stats.rounds else NOTHING
    ),
    "draft hit ratio": hit_ratio,
    "memory over plain, MB": _memory,
    "in loops": lambda one: f"{one.loop_share:.0%}",
    "same text": _same,
    "failed": lambda one: str(len(one.failures)),
}


def tasks(caption: str, summary: Summary) -> Table:
    """One row per task, one column per method."""
    methods = [name for name in summary.overall.methods if name != PLAIN]
    rows = [
        [
            group.name,
            str(group.texts),
            str(group.looping),
            *(
                words.speedup(group.methods[name]) if name in group.methods else NOTHING
                for name in methods
            ),
        ]
        for group in (*summary.groups, summary.overall)
    ]
    return Table(caption, ["task", "texts", "looping", *methods], rows)


def guessing(group: Group) -> list[MethodSummary]:
    """The methods that guessed something and whose rounds are known."""
    return [
        method
        for method in group.methods.values()
        if method.stats.acceptance_histogram and method.stats.triggers
    ]


def acceptance(caption: str, summary: Summary) -> Table:
    """One row per method: tokens gained per round."""
    return Table.of(f"{caption}: tokens gained per round", _GAINS, guessing(summary.overall))


_GAINS: Columns[MethodSummary] = {
    "method": lambda one: one.method,
    "rounds": lambda one: str(one.stats.rounds),
    "with guesses": lambda one: f"{one.stats.triggers / one.stats.rounds:.0%}",
    "mean": lambda one: f"{one.stats.mean_acceptance_length:.2f}",
    "median": lambda one: f"{median(one.stats.acceptance_histogram.elements()):g}",
    "most": lambda one: str(max(one.stats.acceptance_histogram)),
    "gained 1 token": lambda one: (
        f"{one.stats.acceptance_histogram[1] / one.stats.acceptance_histogram.total():.0%}"
    ),
}


def positions(caption: str, summary: Summary) -> Table:
    """One row per method, one column per position of a guess in its chain."""
    shares = {one.method: one.stats.acceptance_by_position for one in guessing(summary.overall)}
    deepest = max(map(len, shares.values()), default=0)
    shown = min(deepest, _POSITIONS)
    rows = [
        [name, *(f"{share:.0%}" for share in found[:shown]), *[NOTHING] * (shown - len(found))]
        for name, found in shares.items()
    ]
    note = "Share of guesses that were accepted, in rounds that guessed that far ahead."
    if deepest > shown:
        note += f" Positions up to {deepest} were guessed; the plot has them all."
    headings = ["method", *(str(place) for place in range(1, shown + 1))]
    return Table(f"{caption}: guesses accepted, by position", headings, rows, note=note)


def sources(caption: str, summary: Summary) -> Table:
    """One row per source of each method that has sources; see `SourceStats`."""
    rows = [
        [
            name,
            source,
            f"{did.asked / did.rounds:.0%}",
            *(f"{n:,}" for n in (did.proposed, did.scored, did.accepted, did.gained)),
            f"{1e3 * did.seconds / did.rounds:.2f}",
            f"{did.seconds / method.stats.seconds:.0%}",
        ]
        for name, method in summary.overall.methods.items()
        for source, did in method.stats.sources.items()
        if did.rounds and method.stats.seconds
    ]
    headings = ["method", "source", "rounds asked", "proposed", "scored", "accepted", "gained"]
    headings += ["ms per round", "share of time"]
    note = (
        "Scored: proposed nodes that were left after trees were cut to what pays off. Accepted: "
        "other sources may have proposed these nodes, too. Gained: tokens that would be missing "
        "without the source. Time: of asking the source and of telling it what was written."
    )
    return Table(f"{caption}: guesses by source", headings, rows, left=2, note=note)


def time(caption: str, summary: Summary) -> Table:
    """Milliseconds per token, one row per method."""
    rows = [
        [name, *(f"{spent:.2f}" for spent in (*parts.values(), sum(parts.values())))]
        for name, parts in milliseconds_per_token(summary.overall).items()
    ]
    return Table(f"{caption}: milliseconds per token", ["method", *ALL_PARTS, "all"], rows)


def milliseconds_per_token(group: Group) -> dict[str, dict[str, float]]:
    """Method -> part -> time of the first trials; "rest" is what no part accounts for."""
    found = {}
    for name, method in group.methods.items():
        seconds = seconds_by_part(method.stats)
        seconds["rest"] = max(0.0, method.first_seconds - sum(seconds.values()))
        found[name] = {
            part: 1000 * spent / max(1, method.tokens) for part, spent in seconds.items()
        }
    return found
