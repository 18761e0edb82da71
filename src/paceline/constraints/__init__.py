"""What a text may be held to: JSON, a schema, a regular expression, a grammar.

A `Constraint` describes it and costs nothing. `paceline.constraints.grammars` makes matchers of it,
with llguidance, which `pip install paceline[constraints]` brings.
"""

from paceline.constraints.constraint import (
    MOST_GRAMMAR_BYTES,
    MOST_REGEX_BYTES,
    MOST_SCHEMA_BYTES,
    Constraint,
)

__all__ = ["MOST_GRAMMAR_BYTES", "MOST_REGEX_BYTES", "MOST_SCHEMA_BYTES", "Constraint"]
