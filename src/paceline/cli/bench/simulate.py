"""`paceline bench simulate`: methods on recorded outputs of stronger models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.flags import option
from paceline.cli.groups import Sampling, grouped

if TYPE_CHECKING:
    from paceline.bench.simulate import Recording


@dataclass(frozen=True)
class _Recorded(shared.Data):
    """Which recorded outputs to use."""

    limit: int | None = option(None, "Most records of each file, evenly spaced.", min=1)
    answers: int = option(0, "Other outputs of a prompt to use as references.", min=0)
    system: Path | None = option(
        None, "File with the text of system messages, for traces that leave it out."
    )


@grouped
def simulate(
    *,
    traces: Annotated[
        list[str],
        typer.Argument(
            help='Trace files in --data, JSONL files, or "all" for every one in --data.'
        ),
    ],
    trials: shared.Trials,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods with settings, separated by commas.")
    ] = "plain,auto,anpd,llma,pld",
    chosen: _Recorded,
    sampling: Sampling = Sampling(max_new_tokens=256),  # noqa: B008
    budget: flags.BudgetOption = None,
) -> None:
    """Force methods to follow recorded outputs, while every pass really runs on the model.

    Acceptance is then that of the recorded text, and cost that of the model. This shows what
    methods would gain on answers that the model itself cannot write.
    """
    options = sampling.options(budget=budget)
    names = _checked(methods)
    recordings = _read(traces, chosen)
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


@common.interruptible()
def _checked(methods: str) -> list[str]:
    """Plain decoding first; other software is refused, because it cannot be forced."""
    from paceline.bench.trial import PLAIN
    from paceline.drafters import check_method

    names = list(dict.fromkeys([PLAIN, *shared.split_methods(methods)]))
    for name in names:
        check_method(name)
    return names


@common.interruptible()
def _read(traces: list[str], chosen: _Recorded) -> list[Recording]:
    from paceline.bench.traces import read_traces

    texts = common.read_references([chosen.system], "system message file") if chosen.system else []
    return read_traces(traces, chosen.data, chosen.limit, chosen.answers, *texts)
