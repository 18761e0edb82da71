"""What a text may have to follow: JSON, a schema, a regular expression, a grammar.

A `Constraint` describes it and costs nothing. `paceline.constraints.grammars` turns it into
matchers with llguidance, which `pip install paceline[constraints]` installs.
"""

from paceline.constraints.constraint import (
    MOST_GRAMMAR_BYTES,
    MOST_REGEX_BYTES,
    MOST_SCHEMA_BYTES,
    Constraint,
)

__all__ = ["MOST_GRAMMAR_BYTES", "MOST_REGEX_BYTES", "MOST_SCHEMA_BYTES", "Constraint"]
