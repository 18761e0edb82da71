"""`paceline generate`: write the answer to a prompt, or to those of a file."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.flags import SAMPLING, option, told
from paceline.cli.groups import Choice, Kept, Machine, Output, Prompts, Request
from paceline.cli.show import print_stream, summary
from paceline.constraints import Constraint
from paceline.errors import UsageError
from paceline.json_files import parse_json
from paceline.prompts import Conversation, PromptRecord

if TYPE_CHECKING:
    from paceline.session import Completion

_CONSTRAINTS = "Constraints"


@dataclass(frozen=True)
class _Constrained:
    """The constraint of an answer: at most one of these."""

    json_object: bool = option(False, "Answer with a JSON object.", panel=_CONSTRAINTS)
    json_schema: Path | None = option(
        None, "File with a JSON schema that the answer must follow.", panel=_CONSTRAINTS
    )
    regex: str | None = option(
        None, "Regular expression that the answer must match.", panel=_CONSTRAINTS
    )
    grammar: Path | None = option(
        None,
        "File with a grammar that the answer must follow, in llguidance's Lark format.",
        panel=_CONSTRAINTS,
    )

    def constraint(self) -> Constraint | None:
        """The one that was given, or None; raises UsageError for more than one, and for a file
        that cannot be read."""
        if sum(each not in (None, False) for each in astuple(self)) > 1:
            raise UsageError("give only one of --json-object, --json-schema, --regex and --grammar")
        if self.json_object:
            return Constraint.json_object()
        if self.regex is not None:
            return Constraint.regex(self.regex)
        if self.grammar is not None:
            return Constraint.grammar(common.read_text(self.grammar, "grammar file"))
        if self.json_schema is None:
            return None
        text = common.read_text(self.json_schema, "JSON schema")
        try:
            return Constraint.json_schema(parse_json(text))
        except ValueError as error:
            raise UsageError(f"cannot read the JSON schema {self.json_schema}: {error}") from error


def generate(
    *,
    choice: Choice,
    prompts: Prompts,
    request: Request = Request(max_new_tokens=256),  # noqa: B008
    stop: Annotated[
        list[str] | None, told("String that ends the text; may be repeated.", panel=SAMPLING)
    ] = None,
    constrained: _Constrained,
    machine: Machine,
    kept: Kept,
    output: Output,
) -> None:
    """Write the answer to a prompt, or to each record of a prompt file."""
    options = request.options(stop=stop, constraint=constrained.constraint())
    records, references = prompts.records(), prompts.texts()
    common.check_writable(output.json_file, prompts, constrained, kept)
    common.end_with_terminal()
    session = common.open_session(choice.model, choice.chosen, **vars(kept), **vars(machine))
    console, answers = common.console(), list[dict[str, Any]]()
    try:
        for record in records:
            texts = [*references, *record.references]
            talk = Conversation(record, session.tokenizer.chat_template)
            try:
                while not talk.ended:
                    stream = session.stream(talk.ask(), references=texts, **options)
                    try:
                        completion = print_stream(stream, console, output.show_drafts)
                    except SystemExit:  # by SIGTERM
                        answers.append(_as_json(record, stream.completion))
                        raise
                    talk.take(completion.text)
                    answers.append(_as_json(record, completion))
                    common.note(summary(completion))
                    if completion.finish_reason == "interrupted":
                        raise typer.Exit(130)
            except UsageError as error:
                if prompts.prompt_file is None:
                    raise
                raise UsageError(f"record {record.id}: {error}") from error
    finally:  # whatever happens, the file gets the answers so far
        if answers:
            common.write_json(output.json_file, answers)


def _as_json(record: PromptRecord, completion: Completion) -> dict[str, Any]:
    from paceline.bench.entries import seconds_by_part

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
        "seconds": seconds_by_part(stats),
        "tokens_per_second": stats.tokens_per_second,
    }
