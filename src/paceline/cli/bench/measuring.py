"""`paceline bench run`, `simulate` and `ablate`: methods and baselines on suites of prompts, methods
on recorded outputs of stronger models, and the effect of a method's settings as in its paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import DRAFTING, option, told
from paceline.cli.groups import BudgetOption, Request, Sampling

_METHODS = "plain,auto,anpd,llma,pld,transformers,transformers-lookup"


def run(
    *,
    suites: shared.SuitesArgument,
    trials: shared.Trials,
    contenders: shared.Contenders = shared.Contenders(_METHODS),  # noqa: B008
    chosen: shared.SuiteTexts,
    by_category: Annotated[
        bool, told("Use the suites' categories, e.g. writing, as tasks.")
    ] = False,
    request: Request,
) -> None:
    """Measure methods and baselines on suites of prompts, in turns, against plain decoding.

    Each trial is saved immediately: --resume continues a run, `bench report` makes tables of it.
    """
    options = request.options()
    names = contenders.names()
    texts = chosen.read(suites, by_category)
    asked = {"methods": names, "suites": suites, "limit": chosen.limit, "options": options}
    path, found = trials.measure("run", texts, asked, contenders)
    found.note_exceptions()
    trials.name_results(path)
    found.exit_if_failed()


@dataclass(frozen=True)
class _Recorded:
    """Which recorded outputs to use."""

    data: shared.DataOption = None
    limit: int | None = option(None, "Most records of each file, evenly spaced.", min=1)
    answers: int = option(0, "Other outputs of a prompt to use as references.", min=0)
    system: Path | None = option(
        None, "File with the text of system messages, for traces that leave it out."
    )


def simulate(
    *,
    traces: Annotated[
        list[str],
        told(
            'Trace files in --data, JSONL files, or "all" for every one in --data.', argument=True
        ),
    ],
    trials: shared.Trials,
    methods: Annotated[
        str, told("Methods with settings, separated by commas.")
    ] = "plain,auto,anpd,llma,pld",
    chosen: _Recorded,
    sampling: Sampling = Sampling(max_new_tokens=256),  # noqa: B008
    budget: BudgetOption = None,
) -> None:
    """Force methods to follow recorded outputs, while every pass really runs on the model.

    Acceptance is then that of the recorded text, and cost that of the model. This shows what
    methods would gain on answers that the model itself cannot write.
    """
    options = sampling.options(budget=budget)
    with common.interruptible():
        from paceline.bench.traces import read_traces
        from paceline.bench.trial import PLAIN
        from paceline.drafters import check_method

        # Other software is refused, because it cannot be forced.
        names = list(dict.fromkeys([PLAIN, *shared.split_methods(methods)]))
        for name in names:
            check_method(name)
        system = common.read_text(chosen.system, "system message file") if chosen.system else None
        recordings = read_traces(traces, chosen.data, chosen.limit, chosen.answers, system)
    asked = {
        "methods": names,
        "traces": traces,
        "limit": chosen.limit,
        "answers": chosen.answers,
        "options": options,
    }
    path, found = trials.measure("simulate", recordings, asked)
    found.show_traces()
    trials.name_results(path)
    found.exit_if_failed()


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
