"""`paceline compare`: methods side by side on the same prompts, against plain decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli import common
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.comparison import Comparison, PromptRecord
    from paceline.session import Session


def compare(
    model: common.ModelOption = common.DEFAULT_MODEL,
    methods: Annotated[
        str, typer.Option("--methods", help="Names with settings, separated by commas.")
    ] = "plain,anpd,llma,pld",
    prompt: Annotated[str | None, typer.Argument(help='A prompt; "-" reads stdin.')] = None,
    prompt_file: common.PromptFileOption = None,
    limit: common.LimitOption = None,
    reference: common.ReferenceOption = None,
    raw: common.RawOption = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs per prompt.")] = 3,
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
    json_file: common.JsonOption = None,
) -> None:
    """Run methods side by side on the same prompts, against plain decoding.

    Shows speed, acceptance, and whether every text is the one plain decoding writes. Without a
    prompt or a prompt file, four bundled prompts are used.
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
    names = split_methods(methods)
    given = tuple(common.read_references(reference))
    prompts = [
        replace(record, references=given + record.references)
        for record in _prompts(prompt, prompt_file, limit, raw)
    ]
    for name in names:
        _check_method(name)
    common.check_writable(json_file)
    session = common.open_session(
        model, "plain", threads=threads, device=device, dtype=dtype, weights=weights
    )
    result = _run(session, prompts, names, options, repeats)
    common.print_table(_table(result))
    if len(prompts) > 1:
        common.print_table(_prompt_table(result))
    _print_mismatches(result)
    if json_file is not None:
        report = _report(session, model, prompts, options | {"repeats": repeats}, result)
        common.write_text(json_file, json.dumps(report, ensure_ascii=False, indent=2) + "\n")


def split_methods(text: str) -> list[str]:
    """Split "plain,anpd:n=5,k=7,llma": a part with "=" belongs to the method before it."""
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names:
        raise UsageError("name at least one method, e.g. --methods plain,anpd,llma")
    return names


def _check_method(name: str) -> None:
    from paceline.drafters import make_drafter

    make_drafter(name)


def _prompts(
    prompt: str | None, prompt_file: Path | None, limit: int | None, raw: bool
) -> list[PromptRecord]:
    if prompt is None and prompt_file is None:
        from paceline.prompts import demo_prompts

        return demo_prompts()[:limit]
    return common.gather_prompts(prompt, prompt_file, limit, raw)


def _run(
    session: Session,
    prompts: list[PromptRecord],
    names: list[str],
    options: dict[str, Any],
    repeats: int,
) -> Comparison:
    from paceline.comparison import compare as run
    from paceline.comparison import count_trials

    with common.progress("comparing") as bars:
        task = bars.add_task("", total=count_trials(session, prompts, names, repeats))
        return run(
            session,
            prompts,
            names,
            session.options.with_(**options),
            repeats,
            on_trial=lambda: bars.advance(task),
        )


def _table(result: Comparison) -> Table:
    table = Table("method", title="all prompts together", title_justify="left")
    for heading in ("tokens/s", "speed-up", "tokens per round", "drafts accepted", "identical"):
        table.add_column(heading, justify="right")
    for name, report in result.methods.items():
        stats = report.stats
        accepted = f"{stats.draft_acceptance_rate:.0%}" if stats.drafted else "-"
        table.add_row(
            name,
            f"{report.tokens_per_second:.1f}",
            f"{result.speedup(name):.2f}x",
            f"{stats.mean_acceptance_length:.2f}",
            accepted,
            "yes" if report.identical else f"no ({len(report.mismatches)})",
        )
    return table


def _prompt_table(result: Comparison) -> Table:
    table = Table("prompt", title="speed-up by prompt", title_justify="left")
    for name in result.methods:
        table.add_column(name, justify="right")
    for label in next(iter(result.methods.values())).speedups:
        row = [f"{report.speedups[label]:.2f}x" for report in result.methods.values()]
        table.add_row(label, *row)
    return table


def _print_mismatches(result: Comparison) -> None:
    console = common.output_console()
    for name, report in result.methods.items():
        for found in report.mismatches:
            gap = "-" if found.logit_gap is None else f"{found.logit_gap:.2e}"
            console.print(
                f"{name} differs on {found.prompt} at token {found.position}: "
                f"{found.method_token} instead of {found.plain_token}, logit gap {gap}",
                style="yellow",
                soft_wrap=True,
            )


def _report(
    session: Session,
    model: str,
    prompts: list[PromptRecord],
    options: dict[str, Any],
    result: Comparison,
) -> dict[str, Any]:
    from paceline.comparison import report_as_json

    return common.circumstances(session, model) | {
        "options": options,
        "prompts": [
            {"id": prompt.id, "task": prompt.task, "turns": len(prompt.turns)} for prompt in prompts
        ],
        "methods": report_as_json(result),
    }
