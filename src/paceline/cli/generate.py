"""`paceline generate`: write the answer to a prompt, or to those of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import common
from paceline.cli.constrained import Constrained
from paceline.cli.flags import SAMPLING, option
from paceline.cli.groups import Choice, Kept, Machine, Output, Prompts, Request, grouped
from paceline.cli.show import print_stream, summary
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.prompts import PromptRecord
    from paceline.session import Completion, Session


@dataclass(frozen=True)
class _Request(Request):
    stop: list[str] | None = option(
        None, "String that ends the text; may be repeated.", panel=SAMPLING
    )


@grouped
def generate(
    *,
    choice: Choice,
    prompts: Prompts,
    request: _Request = _Request(max_new_tokens=256),
    constrained: Constrained,
    machine: Machine,
    kept: Kept,
    output: Output,
) -> None:
    """Write the answer to a prompt, or to each record of a prompt file."""
    options = request.options(constraint=constrained.constraint())
    records, references = prompts.records(), common.read_references(prompts.reference)
    common.check_writable(output.json_file, prompts, constrained, kept)
    session = common.open_session(choice.model, choice.chosen, **vars(kept), **vars(machine))
    answers: list[dict[str, Any]] = []
    try:
        for record in records:
            texts = [*references, *record.references]
            with _named(record if prompts.prompt_file else None):
                for completion in _answer(session, record, texts, options, output.show_drafts):
                    answers.append(_as_json(record, completion))
                    common.note(summary(completion))
                    if completion.finish_reason == "interrupted":
                        raise typer.Exit(130)
    finally:  # whatever happens, the file gets the answers that are finished
        if answers:
            common.write_json(output.json_file, answers)


@contextmanager
def _named(record: PromptRecord | None) -> Iterator[None]:
    """Put the record's id in front of the sentence of a UsageError; None changes nothing."""
    try:
        yield
    except UsageError as error:
        if record is None:
            raise
        raise UsageError(f"record {record.id}: {error}") from error


def _answer(
    session: Session,
    record: PromptRecord,
    texts: list[str],
    options: dict[str, Any],
    show_drafts: bool,
) -> Iterator[Completion]:
    """Answer all turns of one record, with the model's answers in between."""
    console = common.console()
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
