"""`paceline generate`: write the answer to a prompt, or to those of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common, constrained, drafts, flags
from paceline.cli.datastore import DatastoreOption
from paceline.cli.groups import Machine, Request, grouped
from paceline.cli.show import print_stream, summary

if TYPE_CHECKING:
    from paceline.prompts import PromptRecord
    from paceline.session import Completion, Session


@grouped
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help='The prompt; "-" reads it from stdin.')
    ] = None,
    model: flags.ModelOption = common.DEFAULT_MODEL,
    method: drafts.MethodOption = None,
    draft_model: drafts.DraftModelOption = None,
    prompt_file: flags.PromptFileOption = None,
    limit: flags.LimitOption = None,
    reference: flags.ReferenceOption = None,
    raw: flags.RawOption = False,
    request: Request = Request(max_new_tokens=256),  # noqa: B008
    stop: flags.StopOption = None,
    json_object: constrained.JsonObjectOption = False,
    json_schema: constrained.JsonSchemaOption = None,
    regex: constrained.RegexOption = None,
    grammar: constrained.GrammarOption = None,
    machine: Machine = Machine(),  # noqa: B008
    store: flags.StoreOption = None,
    datastore: DatastoreOption = None,
    show_drafts: flags.ShowDraftsOption = False,
    json_file: flags.JsonOption = None,
) -> None:
    """Write the answer to a prompt, or to each record of a prompt file."""
    constraint = constrained.chosen_constraint(json_object, json_schema, regex, grammar)
    options = request.options(stop=stop, constraint=constraint)
    prompts = common.gather_prompts(prompt, prompt_file, limit, raw)
    references = common.read_references(reference)
    common.check_writable(json_file)
    method = drafts.chosen_method(method, draft_model)
    session = common.open_session(model, method, store=store, datastore=datastore, **machine.given)
    _answer_all(session, prompts, references, options, show_drafts, json_file)


def _answer_all(
    session: Session,
    prompts: list[PromptRecord],
    references: list[str],
    options: dict[str, Any],
    show_drafts: bool,
    json_file: Path | None,
) -> None:
    """Print all answers; the file gets those that there are, whatever happens."""
    records: list[dict[str, Any]] = []
    try:
        for record in prompts:
            for completion in _answer(session, record, references, options, show_drafts):
                records.append(_as_json(record, completion))
                common.note(summary(completion))
                if completion.finish_reason == "interrupted":
                    raise typer.Exit(130)
    finally:
        if json_file is not None:
            common.write_text(json_file, json.dumps(records, ensure_ascii=False, indent=2) + "\n")


def _answer(
    session: Session,
    record: PromptRecord,
    references: list[str],
    options: dict[str, Any],
    show_drafts: bool,
) -> Iterator[Completion]:
    """All turns of one record, the model's answers in between."""
    console = common.output_console()
    texts = [*references, *record.references]
    if record.raw or not session.tokenizer.chat_template:
        stream = session.stream("\n\n".join(record.turns), references=texts, **options)
        yield print_stream(stream, console, show_drafts)
        return
    messages: list[dict[str, str]] = []
    for turn in record.turns:
        messages.append({"role": "user", "content": turn})
        stream = session.stream(messages, references=texts, **options)
        completion = print_stream(stream, console, show_drafts)
        messages.append({"role": "assistant", "content": completion.text})
        yield completion


def _as_json(record: PromptRecord, completion: Completion) -> dict[str, Any]:
    stats = completion.stats
    return {
        "id": record.id,
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "lossless": completion.lossless,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "rounds": stats.rounds,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": dict(sorted(stats.acceptance_histogram.items())),
        "seconds": {
            "prefill": stats.prefill_seconds,
            "draft": stats.draft_seconds,
            "target": stats.target_seconds,
            "commit": stats.commit_seconds,
        },
        "tokens_per_second": stats.tokens_per_second,
    }
