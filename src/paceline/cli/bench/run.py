"""`paceline bench run`: methods and baselines on suites of prompts."""

from __future__ import annotations

from typing import Annotated

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import told
from paceline.cli.groups import Request

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
    common.note(f"results are in {path}; tables and plots: paceline bench report {trials.out}")
    found.exit_if_failed()
