"""`paceline batch --ray` as its user meets it, with actors in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")
pytest.importorskip("pyarrow", reason="needs the extra 'ray'")

from tests.serve.live import wait_for
from tests.tiny import save_tiny_llama

import paceline


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def started(model: Path, asked: Path, output: Path, *words: object) -> subprocess.Popen[str]:
    """The command, with what it says on standard error."""
    given = ["--input", asked, "--output", output, "--model", model, "--method", "plain"]
    command = [sys.executable, "-m", "paceline", "batch", *given, "--max-batch", 2, *words]
    source = str(Path(paceline.__file__).parents[1])
    return subprocess.Popen(
        [str(word) for word in command],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source, "RAY_ADDRESS": "local"},
    )


def write_requests(path: Path, count: int) -> None:
    with path.open("w") as file:
        for place in range(count):
            body = {"model": "tiny", "prompt": "x" * (1 + place % 9), "seed": place}
            body |= {"max_tokens": 120, "ignore_eos": True}
            record = {"method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps({"custom_id": f"{place}", **record}) + "\n")
        file.write("broken\n")


def results(path: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = {}
    for record in records:
        choices = record["response"] and record["response"]["body"]["choices"]
        found[record["custom_id"]] = (record["id"], record["error"], choices)
    assert len(found) == len(records)
    return found


def actors(parent: int) -> list[int]:
    """The processes of the command's own actors."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if b"MapWorker" in (entry / "cmdline").read_bytes() and _descends(entry.name, parent):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def _descends(process: str, ancestor: int) -> bool:
    while process not in ("0", "1"):
        if process == str(ancestor):
            return True
        process = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
    return False


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_the_death_of_an_actor_costs_no_answer(tiny: Path, tmp_path: Path) -> None:
    asked, output, alone = (tmp_path / name for name in ("in", "out", "alone"))
    count = 30
    write_requests(asked, count)
    assert started(tiny, asked, alone).wait(300) == 1  # of the broken line
    on_ray = started(tiny, asked, output, "--ray", "--ray-actors", 2, "--ray-cpus", 0.5)
    wait_for(lambda: lines(output) > 3, 240)
    killed = actors(on_ray.pid)
    assert len(killed) == 2
    os.kill(killed[0], signal.SIGKILL)
    _, said = on_ray.communicate(timeout=300)
    assert on_ray.returncode == 1, said
    assert f"{count} answered, 1 failed (invalid_json_line 1)" in said
    assert results(output) == results(alone)


def test_what_was_killed_goes_on(tiny: Path, tmp_path: Path) -> None:
    asked, output, alone = (tmp_path / name for name in ("in", "out", "alone"))
    write_requests(asked, 30)
    assert started(tiny, asked, alone).wait(300) == 1
    first = started(tiny, asked, output, "--ray", "--ray-cpus", 0.5)
    wait_for(lambda: lines(output) > 3, 240)
    first.kill()
    first.wait()
    before = output.read_bytes()
    assert lines(output) < 31
    again = started(tiny, asked, output, "--ray", "--ray-cpus", 0.5)
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert output.read_bytes().startswith(before)
    assert results(output) == results(alone)


@pytest.mark.parametrize(
    ("model", "words", "reason"),
    [
        ("none", [], "none"),
        ("tiny", ["--ray-cpus", 1e6], "all of Ray has"),
        ("tiny", ["--ray-address", "127.0.0.1:1"], "cannot use Ray at 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tiny: Path, tmp_path: Path, model: str, words: list[Any], reason: str
) -> None:
    asked = tmp_path / "in"
    write_requests(asked, 2)
    ran = started(tiny.with_name(model), asked, tmp_path / "out", "--ray", *words)
    _, said = ran.communicate(timeout=300)
    assert ran.returncode == 2, said
    assert reason in " ".join(said.split())
    assert "Traceback" not in said
