"""Ablations: how a method's settings affect it, plotted as in its paper.

Each is a grid of settings. The usual harness runs it against plain decoding; a table and a plot
with one line per value of the first setting show the results. To add one, add an entry to
`ABLATIONS`.

The papers' methods propose one chain per round, whatever it costs: ANPD has one branch here, and
`paceline bench ablate` sets a budget instead of planning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.bench.metrics import Group, MethodSummary, Summary
from paceline.bench.trial import PLAIN
from paceline.errors import UsageError, check_known, writable
from paceline.tables import Table, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ablation:
    """A grid of settings.

    title: what it shows, and the paper's figure.
    axis: the setting on the plot's x axis.
    lines: label -> value on the axis -> method.
    panels: names in `QUANTITIES`, one plot each.
    """

    title: str
    axis: str
    lines: Mapping[str, Mapping[int, str]]
    panels: tuple[str, ...] = ("speed-up", "tokens per round")

    @property
    def methods(self) -> list[str]:
        """Plain decoding, then every method of the grid once."""
        names = (name for line in self.lines.values() for name in line.values())
        return list(dict.fromkeys([PLAIN, *names]))


def _grid(
    template: str, firsts: Sequence[int], seconds: Sequence[int]
) -> dict[str, dict[int, str]]:
    """_grid("llma:n={},k={}", …)  ->  {"n=1": {4: "llma:n=1,k=4", …}, …}"""
    return {f"n={n}": {other: template.format(n, other) for other in seconds} for n in firsts}


ABLATIONS: dict[str, Ablation] = {
    # Figure 3 of the paper has N=2; the paper settles on 5.
    "anpd-k": Ablation(
        "ANPD: longest draft K, after figure 3 of arXiv 2404.08698 (there N=2)",
        "k",
        _grid("anpd:n={},k={},branches=1", (2, 5), range(1, 11)),
    ),
    # Figures 4 and 5 have K=6, 7 and 8, which differ little; the paper settles on 7. At N=2 both
    # lines are the same algorithm and differ by timing noise only.
    "anpd-n": Ablation(
        "ANPD: longest n-gram N, with the levels below it and without, after figures 4, 5 and 10 "
        "of arXiv 2404.08698, at K=7",
        "n",
        {
            "all levels": {n: f"anpd:n={n},k=7,branches=1" for n in range(2, 8)},
            "one level": {n: f"anpd:n={n},k=7,branches=1,levels=one" for n in range(2, 8)},
        },
    ),
    # The figures have n=1, 2 and 3, and k from 4 to 18 (for RAG in figure 3, every second k).
    "llma": Ablation(
        "LLMA: match length n and copy length k, after figures 3 and 4 of arXiv 2304.04487",
        "k",
        _grid("llma:n={},k={}", range(1, 6), range(4, 19, 2)),
        ("speed-up", "triggers", "accepted tokens", "decoding steps"),
    ),
}

QUANTITIES: dict[str, Callable[[MethodSummary], float]] = {
    "tokens/s": lambda found: found.tokens_per_second,
    "speed-up": lambda found: found.speedup,
    "tokens per round": lambda found: found.stats.mean_acceptance_length,
    "draft hit ratio": lambda found: found.stats.draft_acceptance_rate,
    "triggers": lambda found: found.stats.triggers / found.texts,
    "accepted tokens": lambda found: found.stats.accepted / found.texts,
    "decoding steps": lambda found: found.stats.rounds / found.texts,
}
"""Name -> value; the last three are per text, as in the LLMA paper."""


def find_ablation(name: str) -> Ablation:
    """Look up an ablation. Raises UsageError for an unknown name."""
    check_known("ablation", ABLATIONS, name)
    return ABLATIONS[name]


def tables(methods: Sequence[str], summary: Summary) -> list[Table]:
    """One table for all texts, one for texts that do not loop, and one per task."""
    groups = {"All texts": summary.overall}
    if summary.calm is not None:
        groups["Without looping texts"] = summary.calm.overall
    if len(summary.groups) > 1:
        groups |= {group.name: group for group in summary.groups}
    return [_table(heading, methods, group) for heading, group in groups.items()]


def _table(heading: str, methods: Sequence[str], group: Group) -> Table:
    headings = ["method", *QUANTITIES, "speed-up, 95 % interval"]
    rows = []
    for method in methods:
        if method in group.methods:
            found = group.methods[method]
            numbers = [f"{quantity(found):.2f}" for quantity in QUANTITIES.values()]
            rows.append([method, *numbers, found.sure])
        else:
            reason = group.failed.get(method, "not run")
            rows.append([method, reason, *[""] * (len(headings) - 2)])
    return Table(f"{heading} ({group.texts}, of which {group.looping} loop)", headings, rows)


def left_out(summary: Summary) -> list[str]:
    """A sentence for each text that was not run."""
    return [f"Left out: {left.suite}/{left.prompt}: {left.reason}" for left in summary.left_out]


def markdown(ablation: Ablation, summary: Summary) -> str:
    """Its tables as a page."""
    parts = [f"# {ablation.title}"]
    for table in tables(ablation.methods, summary):
        rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table.rows]
        named = [[f"`{method}`", *cells] for method, *cells in rows]
        parts += [f"## {table.caption}", markdown_table([table.headings, *named])]
    return "\n\n".join([*parts, *left_out(summary)]) + "\n"


def check_matplotlib() -> None:
    """Raise UsageError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib: pip install 'paceline[bench]'")


def draw(ablation: Ablation, group: Group) -> Figure:
    """Draw one panel per quantity, one line per value of the first setting; failures are gaps."""
    from matplotlib.figure import Figure

    figure = Figure((4.0 * len(ablation.panels), 3.2), layout="constrained")  # inches
    figure.suptitle(ablation.title, fontsize="medium", wrap=True)
    panels = figure.subplots(1, len(ablation.panels), squeeze=False)[0]
    for panel, name in zip(panels, ablation.panels):
        for label, line in ablation.lines.items():
            points = {
                value: QUANTITIES[name](group.methods[method])
                for value, method in line.items()
                if method in group.methods
            }
            panel.plot(list(points), list(points.values()), marker="o", markersize=3, label=label)
        panel.set_xlabel(ablation.axis)
        panel.set_title(name, fontsize="medium")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.svg and STEM.png. Raises UsageError if that fails."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png")]
    for path in paths:
        with writable(path):
            figure.savefig(path, dpi=150)
    return paths
