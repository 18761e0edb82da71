"""Answers held to a form, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.running import Command

pytest.importorskip("llguidance", reason="needs paceline[constraints]")


def test_generate_holds_the_answer_to_what_the_options_say(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.lark"
    # Some editors begin files with a byte-order mark.
    schema.write_text(json.dumps({"enum": ["one", "two"]}), encoding="utf-8-sig")
    grammar.write_text('start: "<" /[xy]{3}/ ">"', encoding="utf-8")
    for options, pattern in (
        (("--json-schema", schema), '"(one|two)"'),
        (("--regex", "(ab|cd){2}"), "(ab|cd){2}"),
        (("--grammar", grammar), "<[xy]{3}>"),
        (("--json-object", "-n", 20), r"(?s)\{.*"),
    ):
        result = command("generate", "hello", "-m", tiny, *options)
        assert result.code == 0
        assert re.fullmatch(pattern, result.out.rstrip("\n")), options


def test_a_schema_that_nothing_can_follow_is_one_sentence(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "nope"}', encoding="utf-8")
    result = command("generate", "hello", "-m", tiny, "--json-schema", schema)
    assert result.code == 2
    assert "error: the JSON schema cannot be used: Invalid type: nope" in result.err
