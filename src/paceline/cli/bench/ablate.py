"""`paceline bench ablate`: the effect of a method's settings, shown as in its paper."""

from __future__ import annotations

from typing import Annotated

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import DRAFTING, told
from paceline.cli.groups import Sampling


def ablate(
    *,
    name: Annotated[str, told("anpd-k, anpd-n or llma.", argument=True)],
    suites: shared.SuitesArgument,
    trials: shared.Trials,
    chosen: shared.SuiteTexts,
    sampling: Sampling,
    # Planning would cut the grid short.
    budget: Annotated[int, told("Most tokens guessed per round.", panel=DRAFTING)] = 64,
) -> None:
    """Run a grid of settings of one method, and write a table and a plot to --out.

    Every trial is also a line of a file there: --resume continues an interrupted run, and only
    draws a finished one again.
    """
    options = sampling.options(budget=budget)
    with common.interruptible():
        from paceline.bench.ablations import check_matplotlib, draw, find_ablation, markdown, save

        check_matplotlib()
        ablation = find_ablation(name)
    texts = chosen.read(suites)
    asked = {
        "ablation": name,
        "methods": ablation.methods,
        "suites": suites,
        "limit": chosen.limit,
        "options": options,
    }
    path, found = trials.measure(f"ablate-{name}", texts, asked)
    table = path.with_suffix(".md")
    common.write_text(table, markdown(ablation, found.summary))
    with common.interruptible():
        plots = save(draw(ablation, found.summary.overall), path.with_suffix(""))
    common.print_lines([table, *plots])
    found.note_exceptions()
    found.exit_if_failed()
