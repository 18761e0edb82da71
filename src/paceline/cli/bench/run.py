"""`paceline bench run`: methods and baselines on suites of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.findings import Findings, note_exceptions
from paceline.cli.flags import option
from paceline.cli.groups import Placement, Request, grouped
from paceline.defaults import DEFAULT_MODEL

_METHODS = "plain,auto,anpd,llma,pld,transformers,transformers-lookup"


@dataclass(frozen=True)
class _Texts(shared.SuiteTexts):
    by_category: bool = option(False, "Use the suites' categories, e.g. writing, as tasks.")


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

    Each trial is saved immediately: --resume continues a run, `bench report` makes tables of it.
    """
    options = request.options()
    names = contenders.names()
    texts = chosen.read(suites, chosen.by_category)
    session = common.open_to_measure(model, "plain", measure=True, **vars(placement))
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
        **contenders.files(),
    }
    made = contenders.made(names, session, model, placement)
    path = shared.result_path(trials.out, "run", model)
    lines = shared.measure_methods(path, session, model, texts, asked, trials.resume, made)
    note_exceptions(Findings(lines))
    common.note(f"results are in {path}; tables and plots: paceline bench report {trials.out}")
