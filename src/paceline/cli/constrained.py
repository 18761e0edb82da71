"""The options that constrain an answer to JSON, a schema, a pattern or a grammar."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from paceline.cli.common import read_references
from paceline.cli.flags import option
from paceline.constraints import Constraint
from paceline.errors import UsageError
from paceline.json_files import parse_json

_PANEL = "Constraints"


@dataclass(frozen=True)
class Constrained:
    """The constraint of an answer: at most one of these."""

    json_object: bool = option(False, "Answer with a JSON object.", panel=_PANEL)
    json_schema: Path | None = option(
        None, "File with a JSON schema that the answer must follow.", panel=_PANEL
    )
    regex: str | None = option(None, "Regular expression that the answer must match.", panel=_PANEL)
    grammar: Path | None = option(
        None,
        "File with a grammar that the answer must follow, in llguidance's Lark format.",
        panel=_PANEL,
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
            return Constraint.grammar(*read_references([self.grammar], "grammar file"))
        if self.json_schema is None:
            return None
        (text,) = read_references([self.json_schema], "JSON schema")
        try:
            return Constraint.json_schema(parse_json(text))
        except ValueError as error:
            raise UsageError(f"cannot read the JSON schema {self.json_schema}: {error}") from error
