"""`paceline compare`: methods side by side on the same prompts, against plain decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import told
from paceline.cli.groups import JsonOption, Machine, ModelOption, Prompts, Request
from paceline.defaults import DEFAULT_MODEL
from paceline.prompts import PromptRecord


def compare(
    *,
    model: ModelOption = DEFAULT_MODEL,
    contenders: shared.Contenders,
    prompts: Prompts,
    repeats: Annotated[int, told("Runs per prompt.", min=1)] = 3,
    request: Request,
    machine: Machine,
    json_file: JsonOption = None,
) -> None:
    """Run methods side by side on the same prompts, against plain decoding.

    Shows speed, acceptance, and whether every text is the one plain decoding writes. Without a
    prompt or a prompt file, four bundled prompts are used.
    """
    options = request.options()
    names = contenders.names()
    records = _records(prompts)
    common.check_writable(json_file, prompts, contenders)
    common.end_with_terminal()
    session = common.open_to_measure(model, "plain", measure=True, **vars(machine))
    made = contenders.made(names, session, model, machine)
    from paceline.bench.comparison import Comparison
    from paceline.bench.entries import Entry, LeftOut
    from paceline.bench.suites import Text
    from paceline.bench.trial import PLAIN
    from paceline.cli.findings import Findings

    texts = [Text("prompts", record) for record in records]
    comparison = Comparison(session, made, texts, session.options.with_(**options), repeats)
    lines: list[Entry | LeftOut] = []
    ended: BaseException | None = None  # by Ctrl-C, or by SIGTERM
    try:
        shared.run_with_bar(comparison, lines, "comparing")
    except (KeyboardInterrupt, SystemExit) as error:
        if not any(isinstance(line, Entry) and line.method == PLAIN for line in lines):
            raise  # nothing to compare with
        ended = error
    found = Findings(lines)
    report = common.circumstances(session, model) | {
        "options": options | {"repeats": repeats},
        "state": contenders.state,
        "prompts": [{"id": one.id, "task": one.task, "turns": len(one.turns)} for one in records],
        **found.as_json(),
        "interrupted": ended is not None,
    }
    common.write_json(json_file, report)  # first: whoever reads the tables may have enough
    found.show(by_prompt=len(records) > 1)
    if ended is not None:
        kept = f"{json_file} and these tables show" if json_file else "these tables show"
        common.note(f"interrupted: {kept} what was measured so far")
        raise ended
    found.exit_if_failed()


def _records(prompts: Prompts) -> list[PromptRecord]:
    """The prompts to compare on, each with all references."""
    references = tuple(prompts.texts())
    records = prompts.listed() if prompts.prompt is None else prompts.records()
    return [replace(record, references=references + record.references) for record in records]
