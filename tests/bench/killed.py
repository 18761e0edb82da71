"""A run on the toy that tests interrupt: `python -m tests.bench.killed FILE` writes it slowly."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import paceline.bench.comparison
from paceline.bench.comparison import Comparison
from paceline.bench.results import ResultFile
from paceline.options import Options
from paceline.prompts import PromptRecord
from tests.bench.rig import Fixed, clocked_session, comparison

HEADER: dict[str, Any] = {"command": "paceline bench run", "run": {"methods": ["plain"], "n": 1}}
PROMPTS = [
    PromptRecord("talk", ("hello", "go on"), task="chat"),
    PromptRecord("long", ("x" * 5000,), task="chat"),
    PromptRecord("raw", ("tic tac tic tac",), raw=True, references=("tac tic",)),
]


def new_contest() -> Comparison:
    """Methods, a contender that writes something else, and one that fails."""
    session, _ = clocked_session()
    # They do not depend on what was asked before: a run that is gone on with begins after it.
    strangers = [Fixed("liar", [[1, 2, 3]]), Fixed("crashing", [RuntimeError("broken é")])]
    # Plans remember what ran before, which an interrupted run forgets: a budget is the same always.
    options = Options(max_new_tokens=5, ignore_eos=True, budget=8)
    return comparison(session, ["pld", "anpd", *strangers], PROMPTS, options, repeats=2)


def run(path: Path, resume: bool = False, pause: float = 0.0) -> None:
    """Run to the end, with a pause after each trial."""
    new_contest().run(ResultFile(path, HEADER, resume), lambda: pause and time.sleep(pause))


if __name__ == "__main__":
    # What a process holds differs from run to run, and is no part of what is compared.
    paceline.bench.memory.peak_meter = lambda device: lambda: None
    run(Path(sys.argv[1]), pause=0.02)
