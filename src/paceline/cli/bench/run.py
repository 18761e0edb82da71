"""`paceline bench run`: methods and rivals on suites of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.compare import split_methods

if TYPE_CHECKING:
    from paceline.bench.trial import Contender
    from paceline.session import Session


def run(
    suites: Annotated[
        list[str], typer.Argument(help='Suites, JSONL files, or "all" for every file in --data.')
    ],
    out: shared.OutOption,
    model: common.ModelOption = common.DEFAULT_MODEL,
    methods: Annotated[
        str,
        typer.Option("--methods", help="Methods and rivals with settings, separated by commas."),
    ] = "plain,anpd,llma,pld,transformers,transformers-lookup",
    data: shared.DataOption = None,
    limit: shared.LimitOption = None,
    repeats: shared.RepeatsOption = 3,
    resume: shared.ResumeOption = False,
    max_new_tokens: common.TokensOption = 128,
    temperature: common.TemperatureOption = 0.0,
    top_k: common.TopKOption = None,
    top_p: common.TopPOption = None,
    min_p: common.MinPOption = None,
    seed: common.SeedOption = 0,
    budget: common.BudgetOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
    weights: common.WeightsOption = "auto",
) -> None:
    """Measure methods and rivals on suites of prompts, in turns, against plain decoding.

    Every trial is a line of a file in --out, written at once: an interrupted run goes on with
    --resume. `paceline bench report` makes tables and plots of it.
    """
    options = common.request_options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        budget=budget,
    )
    names = _checked(split_methods(methods))
    texts = _texts(suites, data, limit)
    session = common.open_session(
        model, "plain", threads=threads, device=device, dtype=dtype, weights=weights
    )
    from paceline.bench.contest import Contest

    results = shared.open_results(
        shared.result_path(out, "run", model),
        session,
        model,
        {
            "kind": "run",
            "methods": names,
            "suites": suites,
            "limit": limit,
            "texts": shared.digest(texts),
            "options": options,
            "repeats": repeats,
        },
        resume,
    )
    contenders = _contenders(names, session, model, {"device": device, "dtype": dtype})
    contest = Contest(session, contenders, texts, session.options.with_(**options), repeats)
    shared.play(contest, results)
    common.note(f"results are in {results.path}; tables and plots: paceline bench report {out}")


@common.interruptible()
def _checked(names: list[str]) -> list[str]:
    """Plain decoding first, every name once; raises UsageError for one that does not exist."""
    from paceline.bench.rivals import check_rival, is_rival
    from paceline.bench.trial import PLAIN
    from paceline.drafters import make_drafter

    names = list(dict.fromkeys([PLAIN, *names]))
    for name in names:
        check_rival(name) if is_rival(name) else make_drafter(name)
    return names


@common.interruptible()
def _texts(suites: list[str], data: Path | None, limit: int | None) -> list[Any]:
    from paceline.bench.suites import read_suites

    return read_suites(suites, data, limit)


def _contenders(
    names: list[str], session: Session, model: str, placement: dict[str, Any]
) -> list[Contender]:
    from paceline.bench.rivals import Native, is_rival, make_rival
    from paceline.bench.trial import Method

    native = Native(model, **placement, eos_ids=session.eos_ids)
    return [make_rival(name, native) if is_rival(name) else Method(name, session) for name in names]
