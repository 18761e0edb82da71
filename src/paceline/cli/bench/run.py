"""`paceline bench run`: methods and baselines on suites of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.groups import Placement, Request, grouped
from paceline.defaults import DEFAULT_MODEL

if TYPE_CHECKING:
    from paceline.bench.comparison import Text
    from paceline.bench.results import ResultFile
    from paceline.bench.trial import Contender
    from paceline.session import Session

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
    texts = _read(suites, chosen)
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
    path = shared.result_path(trials.out, "run", model)
    results = shared.open_results(path, session, model, asked, trials.resume)
    made = contenders.made(names, session, model, placement)
    _measure(session, made, texts, asked, results)


def _measure(
    session: Session,
    contenders: list[Contender],
    texts: list[Text],
    asked: dict[str, Any],
    results: ResultFile,
) -> None:
    from paceline.bench.comparison import Comparison

    options = session.options.with_(**asked["options"])
    shared.play(Comparison(session, contenders, texts, options, asked["repeats"]), results)
    path = results.path
    common.note(f"results are in {path}; tables and plots: paceline bench report {path.parent}")


@common.interruptible()
def _read(suites: list[str], chosen: _Texts) -> list[Text]:
    from paceline.bench.suites import read_suites

    return read_suites(suites, chosen.data, chosen.limit, chosen.by_category)
