"""Tables about Ouroboros, for docs/paper-ouroboros.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench_tables import markdown

REPORT = Path(__file__).parent.parent / "benchmarks/results/ouroboros/parts-smollm2-135m.json"

# Table 4 of the paper: tokens per second, HumanEval, Yi 34B with Yi 6B; its baseline is
# speculative decoding, and 15.7 is what its other tables have for plain decoding there.
THEIRS = {
    "speculative": 21.46,
    "+ phrases for drafting": 49.90,
    "+ lengthening": 55.92,
    "+ phrases from verification": 58.18,
    "+ history": 61.20,
}


def _parts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(REPORT.read_text("utf-8"))["parts"]
    return found


def parts_table() -> str:
    """Table 4: part by part."""
    parts = _parts()
    plain, base = parts[0], next(one for one in parts if one["name"] == "speculative")
    rows = [
        ["", "over plain", "tokens per pass", "draft passes per pass", "time drafting", "over "
         "speculative", "paper: over speculative"],
        ["---", *["--:"] * 6],
    ]  # fmt: skip
    for one in parts:
        paper = THEIRS.get(one["name"])
        speed = one["tokens_per_second"]
        rows.append(
            [
                one["name"],
                f"{speed / plain['tokens_per_second']:.2f}x",
                f"{one['tokens_per_pass']:.2f}",
                f"{one['draft_passes'] / one['passes']:.2f}",
                f"{one['draft_seconds'] / one['seconds']:.0%}",
                f"{speed / base['tokens_per_second']:.2f}x",
                "" if paper is None else f"{paper / THEIRS['speculative']:.2f}x",
            ]
        )
    return markdown(rows)


def tasks_table() -> str:
    """Table 12: tokens per pass of the target, and speed-up over plain decoding, by task."""
    parts = _parts()
    tasks = list(parts[0]["tasks"])
    rows = [["", *(task.replace("_", " ") for task in tasks)], ["---", *["--:"] * len(tasks)]]
    for one in parts[1:]:
        cells = []
        for task in tasks:
            found, plain = one["tasks"][task], parts[0]["tasks"][task]
            speedup = found["tokens_per_second"] / plain["tokens_per_second"]
            cells.append(f"{found['tokens_per_pass']:.2f} ({speedup:.2f}x)")
        rows.append([one["name"], *cells])
    return markdown(rows)
