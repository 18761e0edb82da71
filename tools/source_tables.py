"""Tables of the gains of `auto`'s sources, in docs/planning.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.tables import markdown_table

__all__ = ["left_out_table", "replayed_sources_table"]

RESULTS = Path(__file__).parent.parent / "benchmarks/results"
SHOWN = {"anpd": "ANPD", "auto, nothing kept": "`auto`, nothing kept", "auto": "`auto`"}
WITH_ANSWERS = "auto with answers"


def left_out_table() -> str:
    """Speed-ups on recorded answers by file, leaving out each source in turn."""
    report = _replayed()
    found, answers = report["contenders"], report["answers"]
    rest = [name for name in found if name.startswith("without ")]
    names = {**SHOWN, WITH_ANSWERS: "with answers", **{name: name for name in rest}}
    rows = [["file", *names.values(), "answers"]]
    for file in found[WITH_ANSWERS]["files"]:
        speedups = [f"{found[name]['files'][file]:.2f}x" for name in names]
        rows.append([file.replace("_", " "), *speedups, str(answers[file])])
    totals = [f"{found[name]['speedup']:.2f}x" for name in names]
    rows.append(["all, by time", *totals, str(sum(answers.values()))])
    return markdown_table(rows)


def replayed_sources_table() -> str:
    """What each source did in the rounds of `auto` with answers."""
    keys = ("proposed", "scored", "accepted", "gained")
    rows = [["source", "rounds asked", *keys]]
    for name, did in _replayed()["contenders"][WITH_ANSWERS]["sources"].items():
        counts = [f"{did[key]:,}" for key in keys]
        rows.append([f"`{name}`", f"{did['asked'] / did['rounds']:.0%}", *counts])
    return markdown_table(rows)


def _replayed() -> dict[str, Any]:
    path = RESULTS / "planning/sources-smollm2-135m.json"
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return report
