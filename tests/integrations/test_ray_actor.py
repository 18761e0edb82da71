"""What actors of `paceline batch --ray` answer, without Ray."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from tests.cli.running import runner
from tests.tiny import save_tiny_llama

import paceline
from paceline.errors import PacelineError
from paceline.integrations.ray_actor import Answering
from paceline.serve.batch_lines import AnswersOf, BatchLine, outcomes, row


def line(number: int, **fields: Any) -> BatchLine:
    body = {"model": "tiny", "prompt": "x" * number, "max_tokens": 8, "seed": number, **fields}
    return BatchLine(number, f"batch_req_{number}", f"{number}", "/v1/completions", body)


def asked(actor: Answering, *lines: BatchLine) -> dict[str, list[str]]:
    rows = [row(each) for each in lines]
    batch = {name: [each[name] for each in rows] for name in rows[0]}
    return asyncio.run(actor(batch))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_answers_are_those_of_a_session(tiny: Path) -> None:
    """However many come at once: none is turned away."""
    actor = Answering(AnswersOf(str(tiny), "anpd", ["tiny"], max_batch=2))
    lines = [line(number) for number in range(1, 30)]
    wrong = line(30, temperature=9)
    waiting = {each.number: each for each in [*lines, wrong]}
    found = asked(actor, *lines, wrong)
    assert all(isinstance(each, str) for column in found.values() for each in column)
    results = {each.line.number: each for each in outcomes([found], waiting)}
    assert not waiting
    session = paceline.load(str(tiny), "plain")
    for each in lines:
        alone = session.generate(
            each.body["prompt"], seed=each.number, temperature=1.0, max_new_tokens=8
        )
        answer = results[each.number].as_json()
        assert answer["response"]["body"]["choices"][0]["text"] == alone.text
        assert answer["custom_id"] == each.custom_id
        assert answer["response"]["request_id"].startswith("req_")
    assert results[30].status == 400


def test_what_ray_does_twice_counts_once(tiny: Path) -> None:
    lines = [line(1), line(2)]
    batch = {
        "number": ["2", "1", "2", "7"],
        "answer": [json.dumps([200, name, {"n": n}, ""]) for n, name in enumerate("abcd")],
    }
    waiting = {each.number: each for each in lines}
    found = [*outcomes([batch, batch], waiting)]
    assert [(each.line.number, each.request_id) for each in found] == [(2, "a"), (1, "b")]
    assert not waiting


def test_what_is_wrong_is_told_by_every_answer(tmp_path: Path) -> None:
    actor = Answering(AnswersOf(str(tmp_path / "none"), "anpd", ["tiny"], max_batch=2))
    with pytest.raises(PacelineError, match="none"):
        [*outcomes([asked(actor, line(1))], {1: line(1)})]


def test_without_ray_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "paceline.integrations.ray_batch", raising=False)
    command = runner(monkeypatch, capsys)
    for option in (["--ray"], ["--ray-address", "ray://nowhere:1"]):
        ran = command("batch", "--input", tmp_path / "in", "--output", tmp_path / "out", *option)
        assert ran.code == 2
        assert "--ray needs ray: pip install 'paceline[ray]'" in ran.said
    wrong = command("batch", "--input", "in", "--output", "out", "--ray", "--method", "nothing")
    assert wrong.code == 2 and "nothing" in wrong.said
    assert not (tmp_path / "out").exists()
