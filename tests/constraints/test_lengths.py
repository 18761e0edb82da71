"""Constraints that a few bytes make too long or too slow."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import byte_tokenizer, toy_session

from paceline.constraints import Constraint, grammar_matcher, grammars
from paceline.constraints.grammar_length import grammar_length
from paceline.constraints.grammar_matcher import GrammarMatcher, Habits, Tokens
from paceline.constraints.grammars import Grammars
from paceline.constraints.lengths import LEVELS, pattern_length
from paceline.constraints.schema_length import schema_length
from paceline.errors import UsageError

pytest.importorskip("llguidance", reason="needs paceline[constraints]")

MANY = 'X{100000}\nX: "ab"{1000}'
LONG = {"type": "string", "pattern": "^(ab){2000}$"}
TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def doubled(count: int) -> str:
    rules = "".join(f"r{at}: r{at + 1} r{at + 1}\n" for at in range(count))
    return f'start: r0\n{rules}r{count}: "ab"'


def doubled_references(count: int) -> dict[str, Any]:
    pair = {
        f"{at}": {
            "properties": {name: {"$ref": f"#/$defs/{at + 1}"} for name in "ab"},
            "required": ["a", "b"],
        }
        for at in range(count)
    }
    return {"$ref": "#/$defs/0", "$defs": {**pair, f"{count}": {"const": "x"}}}


def nested_roots(levels: int) -> dict[str, Any]:
    """Each level may be meant by every reference."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"$id": "", "if": schema}
    references = [{"$ref": "#" + "/if" * count} for count in range(25)]
    return {"allOf": references, **schema}


TOO_LONG = {
    "counts": Constraint.grammar(f"start: {MANY}"),
    "other counts": Constraint.grammar('start: X~100000\nX: ("ab" ~ 1000..2000)'),
    "nested counts": Constraint.grammar('start: ((("ab"{100}){100}){100}){100}'),
    "pattern": Constraint.grammar("start: X{100000}\nX: /(ab){1000}/"),
    "after a choice": Constraint.grammar(f'start: "no" | "yes" {MANY}'),
    "with a comment": Constraint.grammar(f'start: "}} # \\" //" {MANY} // "'),
    "over lines": Constraint.grammar('start: "a"\n  | x{1000}\nx[capture="y"]: "b"{5000}'),
    "no counts": Constraint.grammar(doubled(30)),
    "no end": Constraint.grammar(f'start: "a" start "{"b" * 5000}" | "c"'),
    "parameters": Constraint.grammar(
        'start: x::0\nx::_: "ab"{500} x::incr(_) %if lt(_, 1000000) | "c" %if ge(_, 1000000)'
    ),
    "inner grammar": Constraint.grammar(f"start: %lark {{\nstart: {MANY}\n}}"),
    "inner schema": Constraint.grammar(
        f'start: "a" %json {json.dumps({"items": LONG, "minItems": 20000})}'
    ),
    "items": Constraint.json_schema({"items": LONG, "minItems": 20000, "x-guidance": TIGHT}),
    "references": Constraint.json_schema(doubled_references(20), compact=True),
    "reference to an id": Constraint.json_schema(
        {
            "$defs": {"x": {"$id": "http://a/x", "items": LONG, "minItems": 20000}},
            "anyOf": [{"type": "null"}, {"$ref": "http://a/x"}],
        }
    ),
    "reference to a name": Constraint.json_schema(
        {"$defs": {"x": {"$anchor": "x", "items": LONG, "minItems": 20000}}, "$ref": "#x"}
    ),
    "beside a place beyond all lists": Constraint.json_schema(
        {
            "examples": [{"$ref": f"#/examples/{'9' * 5000}"}],
            "items": LONG,
            "minItems": 20000,
        }
    ),
    "a number beyond all floats": Constraint.json_schema({"items": LONG, "minItems": 10**400}),
    "counted elsewhere": Constraint.json_schema(
        {"allOf": [{"minItems": 30000}, {"items": {"pattern": "^(ab){1000}$"}}]}
    ),
    "counted by reference": Constraint.json_schema(
        {
            "$defs": {"x": {"anyOf": [{"minProperties": 30000}]}},
            "$ref": "#/$defs/x",
            "additionalProperties": LONG,
        }
    ),
    "two of one name": Constraint.json_schema(
        {
            "$defs": {
                "x": {"$anchor": "x", "items": LONG, "minItems": 20000},
                "y": {"$id": "http://a/y", "$defs": {"z": {"$anchor": "x"}}},
            },
            "$ref": "#x",
        }
    ),
    "an escaped sharp": Constraint.json_schema(
        {
            "$id": "http://a/x%23y",
            "$defs": {"x": {"items": LONG, "minItems": 20000}},
            "$ref": "http://a/x%23y#/$defs/x",
        }
    ),
    "spaces in a pattern": Constraint.grammar("start: X\nX: /(?x)x{200} {200} {200}/"),
    "spaces by a flag": Constraint.grammar("start: X\nX: /x{200} {200} {200}/x"),
    "a pattern as an end": Constraint.grammar("start: x{30000}\nx[suffix=/(ab){1000}/]: /x/"),
    "not closed": Constraint.grammar('start: "\\"' * 2000),
    "other marks of a schema": Constraint.grammar(
        "start: %json "
        + json.dumps({"items": {"const": 1}, "x-guidance": {"item_separator": ",x{90000}"}})
    ),
    "too many to look through": Constraint.json_schema(nested_roots(200)),
    "properties": Constraint.json_schema(
        {"minProperties": 20000, "patternProperties": {"^(ab){2000}$": True}}
    ),
}


@pytest.mark.parametrize("case", TOO_LONG)
def test_what_stands_for_too_much_text_is_refused_before_it_is_written_out(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any, **__: Any) -> Any:
        raise AssertionError("llguidance began")

    refusing = SimpleNamespace(LLMatcher=opened)
    monkeypatch.setattr(grammars, "_llguidance", lambda: refusing)
    tokenizer = byte_tokenizer()
    made = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    with pytest.raises(UsageError, match=r"cannot be used: its repetitions .* use lower counts"):
        made.matcher(TOO_LONG[case])


def test_lengths_are_those_of_the_longest_way() -> None:
    assert grammar_length('start: "abc" ("d" | "ef"{3}) "g"?') == 9
    assert grammar_length('start: a\na: "x"{2,5} B+\nB: /[a-z]{3}|y/') == 5
    assert grammar_length('start: "a" start "bc" | "d"') == 3 * LEVELS
    assert grammar_length("%import common.WS\nstart: WS") == 1
    assert grammar_length("no grammar {{{ [[ ( %lark {") == 0
    assert pattern_length(r"(?i)a{3}(?:b|[c\]{9}]{2})\x{41}\d{4}?") == 10
    assert schema_length({"const": "x" * 1000}) < 1100
    nested = {"properties": {"next": {"$ref": "#"}, "a": {"const": "abc"}}, "required": ["a"]}
    assert 20 * LEVELS < schema_length(nested) < 200 * LEVELS


def test_lengths_of_free_text_and_deep_expressions_are_small() -> None:
    """Repetitions of what may be left out double nothing."""
    levels = "".join(f'e{at}: e{at + 1} ("+" e{at + 1})*\n' for at in range(40))
    assert grammar_length(f'start: e0\n{levels}e40: "(" e0 ")" | /[0-9]+/') < 100 * LEVELS
    assert schema_length({"type": "string", "minLength": 10**9}) < 100
    assert schema_length({"items": {"type": "integer"}, "maxItems": 10**9}) < 100


def test_what_a_part_counts_itself_counts_once() -> None:
    """As in the schema of an optional list."""
    texts = {"type": "array", "minItems": 100, "items": {"const": "x" * 500}}
    alone = schema_length(texts)
    assert schema_length({"anyOf": [texts, {"type": "null"}]}) < 1.1 * alone
    referred = {"$defs": {"x": texts}, "anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}
    assert schema_length(referred) < 1.1 * alone


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every call of a matcher take this long, by its own clock."""
    now = [0.0]

    def clock() -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(grammar_matcher, "clock", clock)
    monkeypatch.setattr(grammars, "clock", clock)


def test_what_forces_too_many_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="forces more than 4096 tokens at once"):
        toy_session().generate("once", constraint=Constraint.choice(["ab" * 3000]))
    done = toy_session().generate("once", constraint=Constraint.choice(["ab" * 30]))
    assert done.text == 30 * "ab"


def test_what_takes_long_for_every_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 0.06)
    with pytest.raises(UsageError, match="cannot be used: it takes too long for every token"):
        toy_session().generate("once", constraint=Constraint.regex("ab+"))


@pytest.mark.parametrize("budget", [0, None])
def test_a_constraint_that_becomes_slow_ends_only_its_text(
    monkeypatch: pytest.MonkeyPatch, budget: int | None
) -> None:
    session = toy_session()
    constraint = Constraint.regex("[ab]{50}")
    assert session.generate("once", constraint=constraint, max_new_tokens=9).error is None
    other = session.stream("upon", max_new_tokens=9, ignore_eos=True)
    stream = session.stream("once", constraint=constraint, max_new_tokens=45, budget=budget)
    next(other)
    next(stream)
    slow(monkeypatch, 0.6)
    with pytest.raises(UsageError, match="the constraint takes too long for one token: use a"):
        stream.run()
    assert stream.completion.finish_reason == "error"
    assert len(other.run().tokens) == 9


class Slow:
    """Stands for llguidance's matcher."""

    def deep_copy(self) -> Slow:
        return self

    def compute_ff_tokens(self) -> list[int]:
        return []

    def rollback(self, count: int) -> None:
        pass

    def is_error(self) -> bool:
        return False


def test_a_slow_guess_does_not_end_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without drafts nobody would have asked."""
    compiled = GrammarMatcher(Slow(), Tokens(9, 9, {}, Habits()))
    text = compiled.copy()
    guesses = text.copy()
    slow(monkeypatch, 0.6)
    assert compiled.forced() == []  # what is compiled may take its time
    with pytest.raises(UsageError, match="too long"):
        guesses.forced()
    slow(monkeypatch, 0.0)
    text.leave(0)
