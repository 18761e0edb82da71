"""JSON of the default model: the same text from every method, and valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.helpers import on_its_model

from paceline.constraints import Constraint
from paceline.session import Session

pytest.importorskip("llguidance", reason="needs paceline[constraints]")
jsonschema = pytest.importorskip("jsonschema")

pytestmark = pytest.mark.model


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def words(length: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


SCHEMAS = {
    "Describe a person as JSON.": an_object(
        name=words(20), age={"type": "integer", "minimum": 0, "maximum": 120}, city=words(20)
    ),
    "List two fruits with their colours as JSON.": {
        "type": "array",
        "items": an_object(fruit=words(12), colour={"enum": ["red", "green", "yellow"]}),
        "minItems": 2,
        "maxItems": 2,
    },
    "Call the weather tool for Paris.": an_object(
        name={"const": "get_current_weather"},
        arguments=an_object(location=words(15), unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "Classify as JSON: 'I cannot log in.'": an_object(
        category={"enum": ["billing", "technical_problem", "feedback"]},
        urgent={"type": "boolean"},
        reason={"anyOf": [words(30), {"type": "null"}]},
    ),
    "Where is the tower? Answer as JSON.": an_object(
        place={"type": "string", "pattern": "^[A-Z][a-z]{2,10}$"},
        at={"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    ),
}


def answers(session: Session) -> list[Any]:
    return [
        session.chat(
            prompt,
            constraint=Constraint.json_schema(schema),
            temperature=0.8 * (place % 2),
            seed=3,
            max_new_tokens=120,
        )
        for place, (prompt, schema) in enumerate(SCHEMAS.items())
    ]


@pytest.fixture(scope="module")
def plain(default_model: Session) -> list[Any]:
    return answers(on_its_model(default_model, "plain"))


def test_answers_follow_their_schemas(plain: list[Any]) -> None:
    both = zip(plain, SCHEMAS.values(), strict=True)
    ended = [(one, schema) for one, schema in both if one.finish_reason == "stop"]
    assert len(ended) >= 4
    for answer, schema in ended:
        jsonschema.validate(json.loads(answer.text), schema)


@pytest.mark.parametrize("method", ["anpd", "auto"])
def test_every_method_writes_the_json_of_plain_decoding(
    method: str, plain: list[Any], default_model: Session
) -> None:
    drafted = answers(on_its_model(default_model, method) if method == "anpd" else default_model)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.finish_reason for one in drafted] == [one.finish_reason for one in plain]
    assert sum(one.stats.rounds for one in drafted) < sum(one.stats.rounds for one in plain)
