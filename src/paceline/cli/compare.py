"""`paceline compare`: methods side by side on the same prompts, against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common, flags
from paceline.cli.bench import shared
from paceline.cli.findings import Findings, drafts_accepted, method_as_json, note_exceptions
from paceline.cli.groups import Machine, Prompts, Request, grouped
from paceline.defaults import DEFAULT_MODEL
from paceline.prompts import PromptRecord
from paceline.tables import Columns, Table

if TYPE_CHECKING:
    from paceline.bench.entries import Entry, LeftOut
    from paceline.bench.metrics import MethodSummary
    from paceline.bench.trial import Contender
    from paceline.session import Session


@grouped
def compare(
    *,
    model: flags.ModelOption = DEFAULT_MODEL,
    contenders: shared.Contenders,
    prompts: Prompts,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs per prompt.")] = 3,
    request: Request,
    machine: Machine,
    json_file: flags.JsonOption = None,
) -> None:
    """Run methods side by side on the same prompts, against plain decoding.

    Shows speed, acceptance, and whether every text is the one plain decoding writes. Without a
    prompt or a prompt file, four bundled prompts are used.
    """
    options = request.options()
    names = contenders.names()
    records = _records(prompts)
    common.check_writable(json_file, prompts)
    session = common.open_to_measure(model, "plain", measure=True, **vars(machine))
    made = contenders.made(names, session, model, machine)
    entries, interrupted = _measure(session, made, records, options, repeats)
    found = Findings(entries)
    asked = options | {"repeats": repeats}
    report = _report(session, model, records, asked, contenders.state, found)
    # First, because whoever reads the tables may have enough.
    common.write_json(json_file, report | {"interrupted": interrupted})
    _show(found, len(records) > 1)
    if interrupted:
        kept = f"{json_file} and these tables show" if json_file else "these tables show"
        common.note(f"interrupted: {kept} what was measured so far")
        raise KeyboardInterrupt
    if found.failures:
        raise typer.Exit(1)


def _records(prompts: Prompts) -> list[PromptRecord]:
    """The prompts to compare on, each with all references."""
    references = tuple(common.read_references(prompts.reference))
    records = prompts.listed() if prompts.prompt is None else prompts.records()
    return [replace(record, references=references + record.references) for record in records]


def _measure(
    session: Session,
    contenders: Sequence[Contender],
    prompts: Sequence[PromptRecord],
    options: dict[str, Any],
    repeats: int,
) -> tuple[list[Entry | LeftOut], bool]:
    """Returns the entries, and whether Ctrl-C ended it early. Without plain decoding among them,
    Ctrl-C raises KeyboardInterrupt."""
    from paceline.bench.comparison import Comparison, Text
    from paceline.bench.entries import Entry
    from paceline.bench.results import Memory
    from paceline.bench.trial import PLAIN

    texts = [Text("prompts", record) for record in prompts]
    comparison = Comparison(session, contenders, texts, session.options.with_(**options), repeats)
    sink = Memory()
    try:
        shared.run_with_bar(comparison, sink, "comparing")
    except KeyboardInterrupt:
        played = {line.method for line in sink.entries if isinstance(line, Entry)}
        if PLAIN not in played:
            raise
        return sink.entries, True
    return sink.entries, False


def _show(found: Findings, by_prompt: bool) -> None:
    common.print_table(_table(found))
    if any(method.stats.sources for method in found.methods):
        common.print_table(_source_table(found))
    if by_prompt:
        common.print_table(_prompt_table(found))
    _print_mismatches(found)
    note_exceptions(found)


def _table(found: Findings) -> Table:
    columns: Columns[MethodSummary] = {
        "method": lambda one: one.method,
        "tokens/s": lambda one: f"{one.tokens_per_second:.1f}",
        "speed-up": lambda one: f"{one.speedup:.2f}x",
        "tokens per round": lambda one: f"{one.stats.mean_acceptance_length:.2f}",
        "drafts accepted": drafts_accepted,
        "identical": lambda one: (
            "lossy"
            if one.lossy
            else "yes"
            if one.identical
            else f"no ({len(found.differences(one))})"
        ),
    }
    return Table.of("all prompts together", columns, found.methods)


def _source_table(found: Findings) -> Table:
    """What each source of the methods did; see `SourceStats`."""
    headings = ("rounds asked", "proposed", "scored", "accepted", "gained", "ms per round")
    rows = [
        (
            method.method,
            name,
            f"{source.asked / source.rounds:.0%}",
            *map(str, (source.proposed, source.scored, source.accepted, source.gained)),
            f"{1e3 * source.seconds / source.rounds:.2f}",
        )
        for method in found.methods
        for name, source in method.stats.sources.items()
    ]
    return Table("guesses by source", ["method", "source", *headings], rows, left=2)


def _prompt_table(found: Findings) -> Table:
    speedups = {
        label: [method.speedups.get(key) for method in found.methods]
        for key, label in found.labels.items()
    }
    rows = [
        (label, *("-" if each is None else f"{each:.2f}x" for each in row))
        for label, row in speedups.items()
        if any(row)
    ]
    names = [method.method for method in found.methods]
    return Table("speed-up by prompt", ["prompt", *names], rows)


def _print_mismatches(found: Findings) -> None:
    lines = []
    for method in found.methods:
        for label, place in found.differences(method):
            gap = "-" if place.logit_gap is None else f"{place.logit_gap:.2e}"
            lines.append(
                f"{method.method} differs on {label} at token {place.position}: "
                f"{place.method_token} instead of {place.plain_token}, logit gap {gap}"
            )
    common.print_lines(lines, "yellow")


def _report(
    session: Session,
    model: str,
    prompts: list[PromptRecord],
    options: dict[str, Any],
    state: str,
    found: Findings,
) -> dict[str, Any]:
    return common.circumstances(session, model) | {
        "options": options,
        "state": state,
        "prompts": [
            {"id": prompt.id, "task": prompt.task, "turns": len(prompt.turns)} for prompt in prompts
        ],
        "methods": [method_as_json(found, method) for method in found.methods],
        "left_out": found.left_out,
        "failures": [
            {"method": method, "prompt": label, "error": error}
            for (method, label), error in found.failures.items()
        ],
    }
