"""`paceline bench simulate`: methods on recorded outputs of stronger models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import option, told
from paceline.cli.groups import BudgetOption, Sampling


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
    common.note(f"results are in {path}; tables and plots: paceline bench report {trials.out}")
    found.exit_if_failed()
