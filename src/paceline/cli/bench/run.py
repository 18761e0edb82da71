"""`paceline bench run`: methods and baselines on suites of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common, drafts, flags
from paceline.cli.bench import shared
from paceline.cli.groups import Placement, Request, grouped

if TYPE_CHECKING:
    from paceline.bench.comparison import Text
    from paceline.bench.results import ResultFile
    from paceline.session import Session

MethodsOption = Annotated[
    str, typer.Option("--methods", help="Methods and baselines with settings, separated by commas.")
]


@grouped
def run(
    suites: Annotated[
        list[str], typer.Argument(help='Suites, JSONL files, or "all" for every file in --data.')
    ],
    out: shared.OutOption,
    model: flags.ModelOption = common.DEFAULT_MODEL,
    methods: MethodsOption = "plain,auto,anpd,llma,pld,transformers,transformers-lookup",
    draft_model: drafts.DraftModelOption = None,
    data: shared.DataOption = None,
    limit: shared.LimitOption = None,
    by_category: shared.ByCategoryOption = False,
    repeats: shared.RepeatsOption = 3,
    resume: shared.ResumeOption = False,
    request: Request = Request(),  # noqa: B008
    warm: shared.WarmOption = False,
    placement: Placement = Placement(),  # noqa: B008
    gguf: shared.GgufOption = None,
) -> None:
    """Measure methods and baselines on suites of prompts, in turns, against plain decoding.

    Every trial is written at once: --resume goes on with a run, `bench report` makes tables of it.
    """
    options = request.options()
    names = shared.checked_methods(methods, gguf, draft_model)
    texts = _texts(suites, data, limit, by_category)
    session = common.open_baseline(model, **placement.given)
    asked = {
        "kind": "run",
        "state": shared.state_of(warm),
        "methods": names,
        "suites": suites,
        "limit": limit,
        "texts": shared.digest(texts),
        "options": options,
        "repeats": repeats,
        "dtype": placement.dtype,
    }
    path = shared.result_path(out, "run", model)
    results = shared.open_results(path, session, model, asked, resume)
    _measure(session, model, texts, asked, results, gguf=gguf, **placement.native)


def _measure(
    session: Session,
    model: str,
    texts: list[Text],
    asked: dict[str, Any],
    results: ResultFile,
    **placement: Any,
) -> None:
    from paceline.bench.comparison import Comparison
    from paceline.bench.results import WARM

    warm = asked["state"] == WARM
    contenders = shared.make_contenders(asked["methods"], session, model, warm, **placement)
    options = session.options.with_(**asked["options"])
    shared.play(Comparison(session, contenders, texts, options, asked["repeats"]), results)
    path = results.path
    common.note(f"results are in {path}; tables and plots: paceline bench report {path.parent}")


@common.interruptible()
def _texts(
    suites: list[str], data: Path | None, limit: int | None, by_category: bool
) -> list[Text]:
    from paceline.bench.suites import read_suites

    return read_suites(suites, data, limit, by_category)
