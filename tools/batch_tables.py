"""Tables of docs/batches.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.tables import markdown_table

__all__ = ["joining_table", "throughput_table"]

FOLDER = Path(__file__).parent.parent / "benchmarks/results/open-batch"
COLUMNS = {"after_the_prompts": "after the prompts", "tokens_per_second": "prompts included"}


def report(name: str) -> dict[str, Any]:
    """A result file."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def throughput_table(name: str) -> str:
    """Tokens per second of all texts together, by number of texts at once."""
    rows = report(name)["throughput"]["table"]
    counts = sorted({row["at_once"] for row in rows})
    lines = [
        ["tokens per second, texts at once", *map(str, counts)],
    ]
    for column, title in COLUMNS.items():
        for method in dict.fromkeys(row["method"] for row in rows):
            found = {row["at_once"]: row for row in rows if row["method"] == method}
            cells = [
                f"{found[count][column]:.0f}"
                + (f" ({found[count][f'{column}_over_one']:.2f}x)" if count > 1 else "")
                for count in counts
            ]
            lines.append([f"`{method}`, {title}", *cells])
    return markdown_table(lines)


def joining_table() -> str:
    """How long other texts wait while a long prompt is read."""
    lines = [
        [
            "",
            "median between tokens, ms",
            "worst while it is read, ms",
            "of the median",
            "all but one in fifty, of the median",
            "worst while nothing is read, of the median",
            "its first token, s",
        ],
    ]
    for run in report("joining")["joining"]["runs"]:
        lines.append(
            [
                f"`{run['method']}`",
                f"{1e3 * run['median_between_tokens']:.1f}",
                f"{1e3 * run['worst_while_read']:.1f}",
                f"{run['worst_over_median']:.2f}x",
                f"{run['p98_over_median']:.2f}x",
                f"{run['worst_of_usual_over_median']:.2f}x",
                f"{run['seconds_to_first_token']:.1f}",
            ]
        )
    return markdown_table(lines)
