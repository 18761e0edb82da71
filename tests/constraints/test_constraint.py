"""Descriptions of constraints, for which no library is needed."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.constraints import Constraint
from paceline.errors import UsageError
from paceline.options import Options


def test_equal_descriptions_are_one_key() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert len({Constraint.json_schema(schema), Constraint.json_schema(dict(schema))}) == 1
    # Properties are written in the order of the schema.
    turned = {"type": "object", "properties": {"a": {}, "b": {}}}
    assert Constraint.json_schema(schema) != Constraint.json_schema(turned)
    assert Constraint.json_object() == Constraint.json_schema({"type": "object"})
    assert hash(Options(constraint=Constraint.regex("a"), logit_bias={1: 2.0}))


def test_choices_may_come_from_an_iterator() -> None:
    assert Constraint.choice(iter(["a", "b"])) == Constraint.choice(["a", "b"])


circle: dict[str, Any] = {}
circle["self"] = circle
deep: Any = {}
for _ in range(100_000):
    deep = {"a": deep}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint.json_schema([]),  # type: ignore[arg-type]
        lambda: Constraint.json_schema({"const": float("nan")}),
        lambda: Constraint.json_schema({"const": {1, 2}}),
        lambda: Constraint.json_schema(circle),
        lambda: Constraint.json_schema(deep),
        lambda: Constraint.choice([]),
        lambda: Constraint.choice(["a", ""]),
        lambda: Constraint.choice("yes"),
        lambda: Constraint.choice(5),  # type: ignore[arg-type]
        lambda: Constraint.choice([1, 2]),  # type: ignore[list-item]
        lambda: Constraint.regex(None),  # type: ignore[arg-type]
        lambda: Constraint.grammar(5),  # type: ignore[arg-type]
        lambda: Constraint.regex("\ud800"),
        lambda: Constraint.json_schema({"const": "\ud800"}),
    ],
)
def test_what_is_no_description_is_refused_in_a_sentence(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert "\n" not in str(caught.value)
