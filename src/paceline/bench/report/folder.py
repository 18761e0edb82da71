"""The files that a report is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.entries import Entry, LeftOut
from paceline.bench.metrics import Summary, summarise
from paceline.bench.results import COLD, object_in, read_results
from paceline.errors import UsageError, readable
from paceline.json_files import parse_json
from paceline.planning.cost_curve import CostCurve


@dataclass(frozen=True)
class Run:
    """A result file with trials of methods on texts."""

    path: Path
    header: Mapping[str, Any]
    lines: list[Entry | LeftOut]
    summary: Summary

    @property
    def asked(self) -> Mapping[str, Any]:
        """What was run on what, and the texts' state: cold if the file does not say."""
        return {"state": COLD, **object_in(self.header, "run")}

    @property
    def simulated(self) -> bool:
        """Whether recorded texts were forced."""
        return self.asked.get("kind") == "simulate"

    @property
    def model(self) -> str:
        """The model's name, else the file's stem."""
        return str(object_in(self.asked, "model").get("name", self.path.stem))


@dataclass(frozen=True)
class Tuning:
    """A result of `paceline tune`.

    floor: milliseconds.
    """

    path: Path
    model: Mapping[str, Any]
    curve: CostCurve
    floor: float
    gb_per_s: float
    share: float


@dataclass(frozen=True)
class Folder:
    """Everything found."""

    runs: list[Run]
    ablations: list[Run]
    tunings: list[Tuning]


def read_folder(path: Path, note: Callable[[str], None] = lambda text: None) -> Folder:
    """Read a folder's result files and those of `paceline tune --json`.

    path: may also be one result file, whatever its name.
    note: is told which files were skipped.

    Raises UsageError if there are none, or one cannot be read.
    """
    if path.is_file():
        return Folder([_run(path)], [], [])
    if not path.is_dir():
        raise UsageError(
            f"{path} does not exist: name a file of results, or the folder that 'paceline bench "
            "run' wrote to"
        )
    found = Folder([], [], [])
    kinds = {"run": found.runs, "simulate": found.runs, "ablate": found.ablations}
    for file in sorted(path.glob("*.jsonl")):
        kind = file.name.partition("-")[0]
        try:
            if kind in kinds:
                kinds[kind].append(_run(file))
        except _NothingToCompareError as error:
            if kind != "ablate":
                raise
            note(f"{file} was skipped: {error}")
    for file in sorted(path.glob("*.json")):
        tuning = _tuning(file, note)
        if tuning is not None:
            found.tunings.append(tuning)
    if not (found.runs or found.ablations or found.tunings):
        raise UsageError(f"{path} holds no results: run 'paceline bench run … --out {path}' first")
    return found


def _run(path: Path) -> Run:
    header, lines = read_results(path)
    try:
        return Run(path, header, lines, summarise(lines))
    except ValueError as error:
        raise _NothingToCompareError(f"{path} holds {error}") from error


class _NothingToCompareError(UsageError):
    """A run was interrupted before its first trial of plain decoding."""


def _tuning(path: Path, note: Callable[[str], None]) -> Tuning | None:
    """Read a tuning; None for other files."""
    with readable(f"{path}"):
        content = path.read_bytes()
    try:
        record = parse_json(content.decode("utf-8-sig"))
    except ValueError:  # it may be anybody's
        note(f"{path} was skipped: it is not JSON in UTF-8")
        return None
    if not (isinstance(record, dict) and {"curve", "floor_milliseconds"} <= record.keys()):
        return None
    try:
        return Tuning(
            path,
            object_in(record, "model"),
            CostCurve.from_records(record["curve"]),
            float(record["floor_milliseconds"]),
            float(record["bandwidth_gb_per_s"]),
            float(record["floor_share"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{path} is damaged ({error}): make it again with 'paceline tune --json {path}'"
        ) from error
