"""`paceline bench run`: methods and baselines on suites of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.groups import Placement, Request, grouped
from paceline.defaults import DEFAULT_MODEL

_METHODS = "plain,auto,anpd,llma,pld,transformers,transformers-lookup"


@dataclass(frozen=True)
class _Texts(shared.SuiteTexts):
    by_category: Annotated[
        bool,
        typer.Option("--by-category", help="Use the suites' categories, e.g. writing, as tasks."),
    ] = False


@grouped
def run(
    *,
    suites: shared.SuitesArgument,
    trials: shared.Trials,
    model: flags.ModelOption = DEFAULT_MODEL,
    contenders: shared.Contenders = shared.Contenders(_METHODS),  # noqa: B008
    chosen: _Texts,
    request: Request,
    placement: Placement,
) -> None:
    """Measure methods and baselines on suites of prompts, in turns, against plain decoding.

    Every trial is written at once: --resume continues a run, `bench report` makes tables of it.
    """
    options = request.options()
    names = contenders.names()
    texts = chosen.read(suites, chosen.by_category)
    session = common.open_baseline(model, **placement.given)
    asked = {
        "kind": "run",
        "state": contenders.state,
        "methods": names,
        "suites": suites,
        "limit": chosen.limit,
        "texts": shared.digest(texts),
        "options": options,
        "repeats": trials.repeats,
        "dtype": placement.dtype,
    }
    from paceline.bench.comparison import Comparison  # slow, unless a session is open

    # Before the file: what cannot be compared must leave none behind.
    made = contenders.made(names, session, model, placement)
    given = session.options.with_(**options)
    comparison = Comparison(session, made, texts, given, trials.repeats)
    path = shared.result_path(trials.out, "run", model)
    with shared.open_results(path, session, model, asked, trials.resume) as results:
        shared.play(comparison, results)
    common.note(f"results are in {path}; tables and plots: paceline bench report {trials.out}")
