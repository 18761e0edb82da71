"""The options that hold an answer to JSON, a schema, a pattern or a grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import read_references
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.constraints import Constraint

JsonObjectOption = Annotated[
    bool,
    typer.Option(
        "--json-object", help="The answer is a JSON object.", rich_help_panel="Constraints"
    ),
]
JsonSchemaOption = Annotated[
    Path | None,
    typer.Option(
        "--json-schema",
        help="File with the JSON schema that the answer follows.",
        rich_help_panel="Constraints",
    ),
]
RegexOption = Annotated[
    str | None,
    typer.Option(
        "--regex", help="Regular expression that the answer matches.", rich_help_panel="Constraints"
    ),
]
GrammarOption = Annotated[
    Path | None,
    typer.Option(
        "--grammar",
        help="File with the grammar of the answer, in llguidance's Lark.",
        rich_help_panel="Constraints",
    ),
]


def chosen_constraint(
    json_object: bool, json_schema: Path | None, regex: str | None, grammar: Path | None
) -> Constraint | None:
    """What the options hold the answer to; None for nothing.

    Raises UsageError for more than one of them, and for a file that cannot be read.
    """
    from paceline.constraints import Constraint

    if sum([json_object, json_schema is not None, regex is not None, grammar is not None]) > 1:
        raise UsageError("give one of --json-object, --json-schema, --regex and --grammar")
    if json_object:
        return Constraint.json_object()
    if regex is not None:
        return Constraint.regex(regex)
    if grammar is not None:
        return Constraint.grammar(*read_references([grammar], "grammar file"))
    return None if json_schema is None else _of_schema(json_schema)


def _of_schema(path: Path) -> Constraint:
    from paceline.constraints import Constraint

    (text,) = read_references([path], "JSON schema")
    try:
        return Constraint.json_schema(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the JSON schema {path}: {error}") from error
