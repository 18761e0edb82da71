"""Benchmarks of sources: which texts are written, which are known, what is counted."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from paceline.bench.traces import Recording, TraceRecord
from paceline.datastore import PROMPT_TOKENS
from paceline.planning.cost_curve import CostCurve, CostPoint
from tests.bench.rig import clocked_session
from tests.tiny import byte_tokenizer

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("replay")


def recorded(name: str, prompt: str, *answers: str) -> Recording:
    messages = [pair for each in answers for pair in (("user", prompt), ("assistant", each))]
    return Recording("file", TraceRecord(name, tuple(messages), prompt))


def test_what_is_written_is_not_known_beforehand(replay: Any) -> None:
    session, _ = clocked_session()
    everything = [
        recorded("0", "p", "own answer"),
        recorded("1", "p", "an other", "and more"),
        recorded("2", "q", "elsewhere"),
    ]
    texts, others = replay.split(everything[:1], everything, session, 3)
    assert [bytes(request.recorded) for request in texts["file"]] == [b"own"]
    assert [bytes(each[PROMPT_TOKENS:]) for each in others["file"]] == [b"an other", b"and more"]
    assert all(bytes(each[:PROMPT_TOKENS]) == b"ant>" for each in others["file"])


def test_no_prompt_is_written_twice_but_its_other_answers_are_known(replay: Any) -> None:
    session, _ = clocked_session()
    everything = [recorded("0", "p", "one"), recorded("1", "p", "two", "more")]
    texts, others = replay.split(everything, everything, session, 9)
    assert [bytes(request.recorded) for request in texts["file"]] == [b"one", b"more"]
    assert [bytes(each[PROMPT_TOKENS:]) for each in others["file"]] == [b"two"]


def test_each_source_is_left_out_once(replay: Any) -> None:
    left = {name: each.method for name, each in replay.sources().items() if "without" in name}
    assert len(left) == len(replay.SOURCES)
    for name, method in left.items():
        assert method.endswith(f"without={name.removeprefix('without ')}")


def test_recorded_answers_are_written_and_timed(replay: Any) -> None:
    session, _ = clocked_session()
    texts, _ = replay.split([recorded("0", "p", "one one one one one")], [], session, 99)
    curve = CostCurve((CostPoint(1, 10, 5.0), CostPoint(64, 10, 8.0)))
    known = {name: replay.Contender(name) for name in ("plain", "anpd")}
    found = replay.result(
        {
            name: {file: replay.replay(each, asked, curve, None) for file, asked in texts.items()}
            for name, each in known.items()
        }
    )
    assert found["plain"]["speedup"] == found["plain"]["files"]["file"] == 1.0
    assert found["anpd"]["speedup"] > 1.0 and found["anpd"]["tokens_per_pass"] > 1.0


def test_any_model_has_a_tokenizer_to_replay_with(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "model")
    LlamaConfig().save_pretrained(tmp_path / "model")
    record = {"turns": ["Count."], "outputs": ["one one one one"]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(record))
    words = f"--traces {tmp_path} --model {tmp_path / 'model'} --methods anpd --json {tmp_path}/out.json"
    monkeypatch.setattr("sys.argv", ["replay.py", *words.split()])
    replay.main()
    assert json.loads((tmp_path / "out.json").read_text())["texts"] == {"traces": 1}
