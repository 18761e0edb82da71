"""`paceline bench ablate`: the effect of a method's settings, shown as in its paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.groups import Sampling, grouped

if TYPE_CHECKING:
    from paceline.bench.ablations import Ablation
    from paceline.cli.findings import Findings


@grouped
def ablate(
    *,
    name: Annotated[str, typer.Argument(help="anpd-k, anpd-n or llma.")],
    suites: shared.SuitesArgument,
    trials: shared.Trials,
    chosen: shared.SuiteTexts,
    sampling: Sampling,
    budget: flags.FixedBudgetOption = 64,  # planning would cut the grid short
) -> None:
    """Run a grid of settings of one method, and write a table and a plot to --out.

    Every trial is also a line of a file there: --resume continues an interrupted run, and only
    draws a finished one again.
    """
    options = sampling.options(budget=budget)
    ablation = _checked(name)
    texts = chosen.read(suites)
    asked = {
        "ablation": name,
        "methods": ablation.methods,
        "suites": suites,
        "limit": chosen.limit,
        "options": options,
    }
    path, found = trials.measure(f"ablate-{name}", texts, asked)
    _write(ablation, found, path)


@common.interruptible()
def _checked(name: str) -> Ablation:
    """The ablation of that name, if its plots can be drawn."""
    from paceline.bench.ablations import check_matplotlib, find_ablation

    check_matplotlib()
    return find_ablation(name)


@common.interruptible()
def _write(ablation: Ablation, found: Findings, results: Path) -> None:
    """Write table and plot next to the results, named like them."""
    from paceline.bench.ablations import draw, markdown, save

    table = results.with_suffix(".md")
    common.write_text(table, markdown(ablation, found.summary))
    plots = save(draw(ablation, found.summary.overall), results.with_suffix(""))
    common.print_lines([table, *plots])
