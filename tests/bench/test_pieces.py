"""`make gpu`'s pieces: what is run, gone on with, repeated and remembered. The pieces are fakes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.errors import ModelError, UsageError
from tests.bench.checkout import ROOT, without_gpu

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
    for word in ("passes-eager", "passes-eager-a"):
        assert [piece.name for piece in named(rig.pieces, [word, "tests"])] == [
            "tests",
            "passes-eager-a",
        ]
    for word in ("test", "passes-e", ""):
        with pytest.raises(UsageError, match=f"no piece '{word}'; there are: tests, passes-gr"):
            named(rig.pieces, [word])


def test_an_interrupted_call_ends_its_piece_and_remembers_it(rig: Rig) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {BENCHMARKS!r})
import pieces
from pathlib import Path
folder = Path({str(rig.folder)!r})
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
command = [sys.executable, "-c", code]
piece = pieces.Piece("long", "a fake", 600, 0, lambda: command, (folder / "long.json",))
state = pieces.State.open(folder / "state.json", {{"device": "fake"}})
pieces.Runner(folder, time.monotonic() + 600).run([piece], state)
"""
    with subprocess.Popen([sys.executable, "-c", script], env=without_gpu()) as call:
        log = rig.folder / "long.log"
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.05)
        call.send_signal(signal.SIGINT)
        assert call.wait(60) != 0
    assert not _runs(int(log.read_text()))
    record = rig.module.State.open(rig.folder / "state.json")["long"]
    assert (record.status, record.calls, record.overruns) == ("unfinished", 1, 0)


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
