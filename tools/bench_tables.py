"""Tables of `paceline bench` results, for README.md and docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from statistics import mean, median

import papers
from papers import SMALL, Columns, crossed, entries, figures, found, listed, made, orders

from paceline.bench.entries import Entry, Key
from paceline.bench.metrics import Cell, Group, MethodSummary, by_text
from paceline.tables import markdown_table

# The papers' settings. Older files, where they were the defaults, have them under the bare names.
_BARE = {"anpd:n=5,k=7,branches=1": "anpd", "llma:n=1,k=15": "llma"}
_SLOW = 0.98

SPEEDUP, LENGTH = "{0.speedup:.2f}x", "{0.stats.mean_acceptance_length:.2f}"
"""Cells of a method."""


def sure(method: MethodSummary) -> str:
    """The speed-up over plain decoding, with its interval if there is one."""
    low, high = method.interval
    found = SPEEDUP.format(method)
    return f"{found} ({low:.2f} to {high:.2f})" if method.prompts > 1 else found


def _same(group: Group) -> str:
    """Whether methods write what plain decoding writes."""
    if any(each.lossy for each in group.methods.values()):
        return "lossy"
    differ = [f"`{m.method}` {len(m.differences)}" for m in group.methods.values() if m.differences]
    return f"texts that differ: {', '.join(differ)}" if differ else "all texts alike"


OVERALL: Columns = {
    "tokens/s": "{0.tokens_per_second:.1f}",
    "speed-up": lambda m: SPEEDUP.format(m) if m.method == "plain" else sure(m),
    "after the prompt": lambda m: f"{m.decode_speedup:.2f}x",
    "tokens per pass": lambda m: f"{m.tokens / m.stats.rounds:.2f}",
}


def overall(kind: str, *models: str) -> str:
    """Every method over all tasks, with the models side by side."""
    return overall_of({model: found(f"{kind}-{model}") for model in models})


def overall_of(runs: Mapping[str, papers.Run]) -> str:
    """The same for runs by model; the first one decides which methods are shown."""
    shown = next(iter(runs.values()))[1].overall.methods
    cells: papers.Cells = {}
    for model, (_, summary) in runs.items():
        for name, (what, cell) in product(shown, OVERALL.items()):
            heading = f"{model}: {what}" if what == "tokens/s" else what
            one = summary.overall.methods.get(name)
            cells[f"`{name}`", (model, heading)] = "-" if one is None else made(cell, one)
    basis = " ".join(_basis(model, run) for model, run in runs.items())
    return f"{crossed('method', cells)}\n\n{basis}"


def _basis(model: str, found: papers.Run) -> str:
    run, summary = found
    machine, options, together = run["machine"], run["options"], summary.overall
    on_cpu = machine["device"] == "cpu"
    place = f"{machine['processor']}, {machine['threads']} threads" if on_cpu else machine["device"]
    as_published = run.get("preparation", {}).get("weights") == "blocks"
    weights = "weights as published" if as_published else run.get("dtype") or "float32"
    warmth = options.get("temperature") or 0
    decoding = f"temperature {warmth:g}" if warmth else "greedy"
    return (
        f"{model}: {together.texts} texts of {len(summary.groups)} tasks, {weights}, {place}, at most "
        f"{options['max_new_tokens']} new tokens, {decoding}, each {times(run['repeats'])}, in turns; "
        f"outputs that repeat endlessly: {together.looping}; {_same(together)}."
    )


def times(repeats: int) -> str:
    """A number of runs in words."""
    return "once" if repeats == 1 else f"{repeats} times"


def tasks(kind: str, model: str, corner: str = "task", more: Columns | None = None) -> str:
    """Speed-ups by task and method, with `more` columns of each method."""
    _, summary = found(f"{kind}-{model}")
    groups = [*summary.groups, summary.overall]
    if summary.calm is not None and more is None:
        groups.append(replace(summary.calm.overall, name="overall, without loops"))
    cells: papers.Cells = {}
    for group in groups:
        cells[group.name, "texts"] = str(group.texts)
        for method in summary.overall.methods:
            columns = {} if method == "plain" else {f"`{method}`": SPEEDUP, **(more or {})}
            one = group.methods.get(method)
            for heading, cell in columns.items():
                cells[group.name, (method, heading)] = "-" if one is None else made(cell, one)
    return crossed(corner, cells)


def traces(kind: str, model: str) -> str:
    """Speed-ups on recorded outputs, followed by force."""
    return tasks(kind, model, "recorded outputs", {"tokens per pass": LENGTH})


def texts(kind: str, model: str) -> str:
    """What methods do to single texts, and two bounds: free drafting, and the fastest method for
    each text, `auto` aside. Every method writes the same number of tokens per text."""
    name = f"{kind}-{model}"
    group = found(name)[1].overall
    plain = group.methods["plain"].times
    lines = entries(name)[1]
    cells = by_text(line for line in lines if isinstance(line, Entry) and not line.error)
    best = _fastest(cells)

    def below(m: MethodSummary) -> str:
        return f"{sum(ratio < _SLOW for ratio in m.speedups.values())} of {m.texts}"

    def free(m: MethodSummary) -> str:
        trials = [cells[key][m.method] for key in m.times]
        without = sum(median(t.seconds - t.stats.draft_seconds for t in each) for each in trials)
        return f"{sum(plain[key] for key in m.times) / without:.2f}x"

    return listed(
        [each for name, each in group.methods.items() if name != "plain"],
        {
            "method": "`{0.method}`",
            "speed-up": SPEEDUP,
            "texts below 0.98x": below,
            "least": lambda m: f"{min(m.speedups.values()):.2f}x",
            "drafting, ms a round": lambda m: f"{1e3 * m.stats.draft_seconds / m.stats.rounds:.2f}",
            "were it free": free,
        },
        more=[["the fastest of the others for each text", f"{best:.2f}x", *["-"] * 4]] * bool(best),
    )


def _fastest(cells: Mapping[Key, Cell]) -> float | None:
    """Speed-up with the method, `auto` aside, that was fastest on each text in the first repeat,
    timed in the later ones: chosen and timed by the same trials, it would gain by chance alone.
    None for a run without repeats."""
    plain = fastest = 0.0
    for cell in cells.values():
        others = {name: [t.seconds for t in cell[name]] for name in cell if name != "auto"}
        best = min(others.values(), key=lambda seconds: seconds[0])
        if len(best) > 1:
            plain += mean(others["plain"][1:])
            fastest += mean(best[1:])
    return plain / fastest if fastest else None


def paper(name: str, table: str, source: str) -> str:
    """A paper's table of speed-ups."""
    rows = figures(name, table).items()
    return markdown_table([["task and model", f"{source}: speed-up"], *rows])


def beside(name: str) -> Iterator[MethodSummary]:
    """Our figures on kinds of tasks that a paper has."""
    for label, (run, group, method) in orders()["rows"][name].items():
        methods = next(each.methods for each in found(run)[1].groups if each.name == group)
        yield replace(methods.get(method) or methods[_BARE[method]], method=label)


def ablation(name: str) -> str:
    """An ablation over all its texts."""
    text = (papers.RESULTS / f"bench/ablate-{name}-{SMALL}.md").read_text(encoding="utf-8")
    return text.split("## ")[1].partition("\n\n")[2].strip()
