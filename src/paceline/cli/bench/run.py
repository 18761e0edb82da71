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
    from paceline.bench.comparison import Comparison, Text
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
    # Before the file: what cannot be compared must leave none behind.
    made = contenders.made(names, session, model, placement)
    comparison = _comparison(session, made, texts, options, trials.repeats)
    path = shared.result_path(trials.out, "run", model)
    with shared.open_results(path, session, model, asked, trials.resume) as results:
        shared.play(comparison, results)
    common.note(f"results are in {path}; tables and plots: paceline bench report {trials.out}")


def _comparison(
    session: Session,
    contenders: list[Contender],
    texts: list[Text],
    options: dict[str, Any],
    repeats: int,
) -> Comparison:
    from paceline.bench.comparison import Comparison

    return Comparison(session, contenders, texts, session.options.with_(**options), repeats)


@common.interruptible()
def _read(suites: list[str], chosen: _Texts) -> list[Text]:
    from paceline.bench.suites import read_suites

    return read_suites(suites, chosen.data, chosen.limit, chosen.by_category)
