"""Servers under load, side by side."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.checkout import ROOT
from tests.forked import Forked

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from tests.serve.live import MODEL, live, tool_session

FILES = {"mt_bench": "What is {}?", "cnndm": "Summarize: {} fell.", "jfleg": "Mend: {} are."}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for task, text in FILES.items():
        records = [
            {"turns": [text.format(word)], "reference_documents": [f"{word} is"]}
            for word in ("snow", "a lake", "light")
        ]
        lines = [json.dumps(record) for record in records]
        (tmp_path / f"{task}.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(data: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """The script's exit code, what it complained of, and its result."""
    result = data / "result.json"
    given = ["--data", data, "--json", result, "--pool", "9", "--max-tokens", "12", *words]
    script = [ROOT / "benchmarks/serve.py", *given]
    process = Forked(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=300)
    return process.returncode, said, json.loads(result.read_text()) if result.exists() else {}


def test_servers_are_asked_in_turns_and_compared(data: Path) -> None:
    with live(tool_session()) as served:
        place = f"{served.url}={MODEL}"
        servers = (f"off={place}=off", f"auto={place}", f"told={place}=prediction")
        words = [word for server in servers for word in ("--server", server)]
        code, said, found = run(data, *words, "--at-once", "1,3", "--pool", "3", "--repeats", "2")
    assert code == 0, said
    assert [(row["clients"], row["server"]) for row in found["rows"]] == [
        (clients, name) for clients in (1, 3) for name in ("off", "auto", "told")
    ]
    for row in found["rows"]:
        assert row["complaints"] == [] and row["different_texts"] == row["left"] == 0
        assert row["answers"] == 6 and row["tokens_per_second"] > 0
        assert row["first_token_median"] <= row["first_token_p95"]
        assert sum(kind["tokens"] for kind in row["kinds"].values()) == row["tokens"]
    assert found["rows"][0]["over_first"] == 1.0


def test_clients_may_hang_up(data: Path) -> None:
    with live(tool_session()) as served:
        server = f"auto={served.url}={MODEL}"
        code, said, found = run(data, "--server", server, "--at-once", "4", "--leaving", "0.5")
    assert code == 0, said
    (row,) = found["rows"]
    assert row["left"] > 0 and row["answers"] > 0 and row["failed"] == 0
    assert row["left"] + row["answers"] == 9


def test_what_is_wrong_is_said(data: Path) -> None:
    code, said, _ = run(data, "--server", "x=http://127.0.0.1:9")
    assert code == 2 and "NAME=URL=MODEL" in said
    code, said, _ = run(data, "--server", "x=http://127.0.0.1:9=m", "--at-once", "1")
    assert code == 1 and "no request was answered" in said


@pytest.mark.parametrize("words", [("--kinds", "poem"), ("--pool", "0"), ("--repeats", "0")])
def test_settings_that_ask_nothing_are_named(data: Path, words: tuple[str, str]) -> None:
    code, said, _ = run(data, "--server", "x=http://127.0.0.1:9=m", *words)
    assert code == 2 and words[0] in said and "Traceback" not in said


def test_all_but_a_twentieth_wait_no_longer_than_the_percentile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    serve: Any = runpy.run_path(str(ROOT / "benchmarks/serve.py"))
    for count in (1, 2, 9, 20, 21, 100):
        replies = [serve["Reply"](None, "", [float(n)], tokens=1) for n in range(1, count + 1)]
        found = serve["summary"](replies, 1.0)["first_token_p95"]
        assert found >= 0.95 * count > found - 1
