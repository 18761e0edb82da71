"""What a text may have to follow: JSON, a schema, a regular expression, a grammar.

A `Constraint` describes it and costs nothing. `paceline.constraints.grammars` turns it into
matchers with llguidance, which `pip install paceline[constraints]` installs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UsageError

__all__ = ["MOST_GRAMMAR_BYTES", "MOST_REGEX_BYTES", "MOST_SCHEMA_BYTES", "Constraint"]

MOST_SCHEMA_BYTES = 64 * 1024
"""Most bytes of a JSON schema, written as JSON."""
MOST_REGEX_BYTES = 10 * 1024
"""Most bytes of a regular expression."""
MOST_GRAMMAR_BYTES = 64 * 1024
"""Most bytes of a grammar, or of a list of choices."""

_LIMITS = {
    "json_schema": ("JSON schema", MOST_SCHEMA_BYTES),
    "regex": ("regular expression", MOST_REGEX_BYTES),
    "grammar": ("grammar", MOST_GRAMMAR_BYTES),
    "calls": ("grammar of calls", MOST_GRAMMAR_BYTES),
    "choice": ("list of choices", MOST_GRAMMAR_BYTES),
}


@dataclass(frozen=True)
class Constraint:
    """What a text must be. Use the class methods to make one.

    kind, text: `text` is a schema or a list of choices as JSON, a pattern, or a grammar. calls: a
    grammar that the server has made for calls of tools, in which what must follow is guessed.
    compact: JSON on one line, with a space after each comma and colon and none elsewhere; otherwise
    the model breaks lines and indents as it likes, within limits.

    The constrained text ends where nothing can follow; before that, an end-of-sequence token may
    end it wherever it is complete. Whether a constraint compiles shows when a request begins.

    Raises UsageError for a text beyond the limits above, or with a lone surrogate.
    """

    kind: Literal["json_schema", "regex", "grammar", "calls", "choice"]
    text: str
    compact: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"a {self.what} must be a text, got {type(self.text).__name__}")
        most = _LIMITS[self.kind][1]
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(
                f"a {self.what} contains a lone surrogate, which is not a character: remove it"
            ) from error
        if size > most:
            raise UsageError(f"a {self.what} must have at most {most} bytes, got {size}")
        # llguidance would read it as a list of grammars.
        if self.kind == "grammar" and self.text.lstrip().startswith("{"):
            raise UsageError("a grammar must be in llguidance's dialect of Lark, not JSON")

    @property
    def what(self) -> str:
        """What `text` is, in words."""
        return _LIMITS[self.kind][0]

    @classmethod
    def json_object(cls, compact: bool = False) -> Constraint:
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, compact)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any], compact: bool = False) -> Constraint:
        """JSON that matches a schema, with properties in its order. Raises UsageError for what is
        not JSON."""
        if not isinstance(schema, Mapping):
            raise UsageError(f"a JSON schema must be an object, got {type(schema).__name__}")
        return cls("json_schema", _as_json(schema, "the JSON schema"), compact)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Text that a regular expression matches as a whole, in the syntax of Rust's `regex`: no
        look-around, no back references."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """Text that a context-free grammar describes, in llguidance's dialect of Lark."""
        return cls("grammar", text)

    @classmethod
    def choice(cls, options: Iterable[str]) -> Constraint:
        """One of these texts. Raises UsageError if there is none, or one is empty."""
        texts = [*options] if isinstance(options, Iterable) and not isinstance(options, str) else []
        if not texts or not all(isinstance(each, str) and each for each in texts):
            raise UsageError("choices must be a non-empty list of non-empty texts")
        return cls("choice", _as_json(texts, "the list of choices"))


def _as_json(value: object, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from error
