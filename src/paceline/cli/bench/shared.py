"""What the bench commands share: their options, their result files, their bars."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common

if TYPE_CHECKING:
    from paceline.bench.contest import Contest, Text
    from paceline.bench.results import ResultFile
    from paceline.session import Session

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder with the suites' JSONL files.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for results and reports.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="At most so many prompts of each task.")
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, help="Trials per text and method; medians count.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


def result_path(out: Path, kind: str, model: str) -> Path:
    """The file of a run, e.g. "DIR/run-smollm2-135m.jsonl"."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-")[-60:]
    return out / f"{kind}-{slug}.jsonl"


def open_results(
    path: Path, session: Session, model: str, run: dict[str, Any], resume: bool
) -> ResultFile:
    """Begin a result file, or go on with one.

    run: what has to be the same for a run to be gone on with, besides model and machine.
    """
    from paceline.bench.results import ResultFile

    found = common.circumstances(session, model)
    same = ("model", "machine", "versions", "preparation", "budget")
    run = {**run, **{name: found[name] for name in same}}
    header = {name: value for name, value in found.items() if name not in same}
    return ResultFile(path, {**header, "run": run}, resume)


def digest(texts: Sequence[Text]) -> str:
    """Identifies what was asked, so that a run is not gone on with on other prompts."""
    content = [[text.suite, vars(text.record)] for text in texts]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def play(contest: Contest, results: ResultFile) -> None:
    """Run with a bar; Ctrl-C leaves the file ready to be gone on with."""
    with common.progress("measuring") as bars:
        task = bars.add_task("", total=contest.trials)
        try:
            contest.run(results, on_trial=lambda: bars.advance(task))
        except KeyboardInterrupt:
            common.note(f"interrupted: {results.path} keeps what was measured, see --resume")
            raise
