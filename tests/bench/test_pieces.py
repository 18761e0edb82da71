"""`make gpu`'s pieces: what is run, gone on with, repeated and remembered. The pieces are fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.errors import ModelError, UsageError

ROOT = Path(__file__).parents[2]
BENCHMARKS = str(ROOT / "benchmarks")
WRITES = "open({0!r}, 'w').write('{{}}'); print('written')"


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module; the scripts import each other as the scripts that they are."""
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])
    return import_module("pieces")


class Rig:
    """Fake pieces in a folder, and calls on them."""

    def __init__(self, module: Any, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.pieces: list[Any] = []
        self.notes: list[str] = []

    def add(self, name: str, code: str = WRITES, limit: float = 60, least: float = 0) -> Any:
        """A piece that runs `code`, in which {0!r} is its result file."""
        result = self.folder / f"{name}.json"
        command = [sys.executable, "-c", code.format(str(result))]
        piece = self.module.Piece(name, "a fake", limit, least, lambda: command, (result,))
        self.pieces.append(piece)
        return piece

    def state(self) -> Any:
        return self.module.State.open(self.folder / "state.json", {"device": "fake"})

    def call(self, seconds: float = 600) -> bool:
        """One call of the command, so many seconds before its time is over."""
        deadline = time.monotonic() + seconds + 2 * self.module.KILL_SECONDS
        runner = self.module.Runner(self.folder, deadline, note=self.notes.append)
        well: bool = runner.run(self.pieces, self.state())
        return well

    def stand(self) -> dict[str, str]:
        state = self.state()
        return {piece.name: state[piece.name].status for piece in self.pieces}


@pytest.fixture
def rig(pieces: ModuleType, tmp_path: Path) -> Rig:
    return Rig(pieces, tmp_path)


def test_pieces_run_once_and_a_failure_stops_no_other(rig: Rig) -> None:
    rig.add("one")
    rig.add("broken", "for i in range(300): print('line', i)\nraise SystemExit('the reason')")
    rig.add("silent", "pass")
    rig.add("two")
    assert not rig.call()
    assert rig.stand() == {"one": "done", "broken": "failed", "silent": "failed", "two": "done"}
    broken, silent = (rig.state()[name] for name in ("broken", "silent"))
    assert broken.reason == "exit code 1" and broken.last[-2:] == ("line 299", "the reason")
    assert silent.reason == "it has not written silent.json"
    log = (rig.folder / "broken.log").read_text().splitlines()
    assert len(log) == rig.module.LOG_LINES and log[-1] == "the reason"
    rig.notes.clear()
    assert rig.call() and rig.notes == []


def test_a_result_that_is_no_json_is_none(rig: Rig) -> None:
    rig.add("half", "open({0!r}, 'w').write('{{\"a\": ')")
    assert not rig.call()
    assert rig.stand() == {"half": "failed"}


def test_what_runs_into_its_limit_is_ended_and_comes_last_with_the_time_that_is_left(
    rig: Rig,
) -> None:
    rig.add("long", "import time; print('begun', flush=True); time.sleep(600)", limit=1)
    rig.add("short")
    assert rig.call()  # to run out of time is no failure
    assert rig.stand() == {"long": "unfinished", "short": "done"}
    record = rig.state()["long"]
    assert (record.calls, record.overruns, record.last) == (1, 1, ("begun",))
    rig.pieces = [rig.pieces[1]]
    rig.add("long", "import time; time.sleep(0.5); " + WRITES, limit=0.01)  # no longer counts
    rig.add("third")
    rig.notes.clear()
    rig.call()
    assert [note.partition(":")[0] for note in rig.notes] == ["third", "third", "long", "long"]
    assert rig.stand() == {"long": "done", "short": "done", "third": "done"}
    assert rig.state()["long"].calls == 2


def test_the_children_of_a_process_end_with_it(rig: Rig) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', child])\n"
        "time.sleep(600)"
    )
    rig.add("parent", code, limit=2)
    rig.call()
    (line,) = rig.state()["parent"].last
    for _ in range(100):  # whoever takes it over has to hear of its end first
        if not _runs(int(line)):
            break
        time.sleep(0.1)
    assert not _runs(int(line))


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_call_without_time_begins_nothing_and_the_next_one_does(rig: Rig) -> None:
    rig.add("large", least=30)
    rig.add("small", least=1)
    rig.call(seconds=10)
    assert rig.stand() == {"large": "waiting", "small": "done"}
    rig.call()
    assert rig.stand() == {"large": "done", "small": "done"}


def test_the_end_of_a_call_is_no_overrun(rig: Rig) -> None:
    rig.add("cut", "import time; time.sleep(600)", limit=60)
    rig.call(seconds=0.5)
    record = rig.state()["cut"]
    assert (record.status, record.overruns) == ("unfinished", 0)


def test_what_is_missing_is_left_out_until_it_is_there(rig: Rig) -> None:
    piece = rig.add("needy")

    def missing() -> list[str]:
        raise ModelError("no such weights: get some")

    rig.pieces = [rig.module.Piece(piece.name, "", 60, 0, missing, piece.results)]
    assert rig.call()
    assert rig.stand() == {"needy": "left out"}
    assert rig.state()["needy"].reason == "no such weights: get some"
    rig.pieces = [piece]
    assert rig.call()
    assert rig.stand() == {"needy": "done"} and rig.state()["needy"].reason == ""


def test_again_repeats_what_is_done_and_goes_on_with_what_failed(rig: Rig) -> None:
    appends = "open({0!r}, 'a').write('{{}}')"
    done = rig.add("done", appends)
    failed = rig.add("failed", appends + "; raise SystemExit(1)")
    rig.call()
    for piece in (done, failed):
        rig.module.again(piece, rig.state())
    assert not done.results[0].exists() and failed.results[0].exists()
    assert set(rig.stand().values()) == {"waiting"}
    rig.call()
    assert done.results[0].read_text() == "{}" and failed.results[0].read_text() == "{}{}"


def test_pieces_are_named_by_name_and_kind(rig: Rig) -> None:
    for name in ("tests", "passes-graphs-a", "passes-eager-a"):
        rig.add(name)
    named = rig.module.named
    assert [piece.name for piece in named(rig.pieces, ["passes"])] == [
        "passes-graphs-a",
        "passes-eager-a",
    ]
    assert [piece.name for piece in named(rig.pieces, ["passes-eager-a", "tests"])] == [
        "tests",
        "passes-eager-a",
    ]
    with pytest.raises(UsageError, match="no piece 'test'; there are: tests, passes-graphs-a"):
        named(rig.pieces, ["test"])


def test_a_call_that_was_killed_leaves_an_unfinished_piece(rig: Rig) -> None:
    rig.add("one")
    state = rig.state()
    state.put("one", rig.module.Record("running", calls=1))
    assert rig.stand() == {"one": "unfinished"}
    rig.call()
    assert rig.state()["one"].calls == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"format": 1, "about": {}}',
        '{"format": 2, "about": {}, "pieces": {}}',
        '{"format": 1, "about": {}, "pieces": {"one": 3}}',
        '{"format": 1, "about": {}, "pieces": {"one": {"status": "ready"}}}',
        '{"format": 1, "about": {}, "pieces": {"one": {"status": "done", "seconds": "3"}}}',
        '{"format": 1, "about": {}, "pieces": {"one": {"status": "done", "last": [1]}}}',
        '{"format": 1, "about": {}, "pieces": {"one": {"status": "done", "more": 1}}}',
        "\xff",
    ],
)
def test_a_damaged_state_is_refused_and_stays(rig: Rig, content: str) -> None:
    path = rig.folder / "state.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"state\.json is damaged: delete it"):
        rig.state()
    assert path.read_bytes() == content.encode("latin-1")


def test_results_of_another_device_are_refused(rig: Rig) -> None:
    rig.add("one")
    rig.call()
    place = rig.folder / "state.json"
    with pytest.raises(UsageError, match=r"another device \('fake', not 'other'\): choose another"):
        rig.module.State.open(place, {"device": "other"})
    assert rig.module.State.open(place)["one"].status == "done"


def _command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/gpu.py"), *words],
        env=os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_lists(tmp_path: Path) -> None:
    ran = _command("--out", str(tmp_path / "out"))
    assert ran.returncode == 2 and not (tmp_path / "out").exists()
    assert ran.stderr.startswith("gpu: this PyTorch sees no CUDA device") and ran.stdout == ""
    ran = _command("--out", str(tmp_path / "out"), "--list", "--model", "a/first", "--model", "b")
    assert ran.returncode == 0
    names = [line.split()[0] for line in ran.stdout.splitlines()]
    assert names[:4] == ["machine", "tests", "losslessness-float32", "losslessness-bfloat16"]
    assert {"methods-first", "methods-b", "passes-eager-b"} <= set(names)


def test_a_piece_without_weights_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--device", "cpu", "--rehearsal", "--out", str(out), "--only", "tune"]
    ran = _command(*words, PACELINE_CACHE=str(tmp_path))
    assert ran.returncode == 0
    record = json.loads((out / "state.json").read_text())["pieces"]["tune-smollm2-135m"]
    assert record["status"] == "left out" and "paceline models pull" in record["reason"]


def test_prompts_are_mixed_and_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])
    prompts = import_module("gpu_prompts")
    data, folder = tmp_path / "data", tmp_path / "prompts"
    data.mkdir()
    for name in ("canitedit", "cnndm", "xsum", "mt_bench"):
        lines = [json.dumps({"id": str(i), "turns": [f"{name} {i}"]}) for i in range(5)]
        (data / f"{name}.jsonl").write_text("\n".join(lines))
    prompts.write_prompts(folder, data, 4, 2)
    mixed = [json.loads(line) for line in (folder / "mixed.jsonl").read_text().splitlines()]
    assert [record["turns"][0] for record in mixed] == [
        "canitedit 0", "cnndm 0", "mt_bench 0", "canitedit 1", "xsum 0", "mt_bench 1",
    ]  # fmt: skip
    assert len((folder / "edits.jsonl").read_text().splitlines()) == 4
    prompts.write_prompts(folder, None, 4, 2)  # what is there will do
    with pytest.raises(UsageError, match="holds other prompts already"):
        prompts.write_prompts(folder, data, 3, 2)
    (data / "mt_bench.jsonl").unlink()
    with pytest.raises(UsageError, match=r"has none of mt_bench\.jsonl, vicuna_bench\.jsonl"):
        prompts.write_prompts(tmp_path / "other", data, 4, 2)
