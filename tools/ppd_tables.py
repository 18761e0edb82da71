"""Tables about PPD: its ablations, accuracies and trees, for docs/paper-ppd.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from bench_tables import DEV, LARGE, SMALL, found, times
from papers import figures

from paceline.tables import markdown_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/ppd"
PARTS = ROOT / "src/paceline/data/ppd"

THESIS = {
    table: figures("ppd", table) for table in ("6.4", "6.5", "6.6", "6.7", "6.8", "6.9", "6.10")
}


@cache
def ablations() -> dict[str, Any]:
    """Variants that were trained side by side."""
    report: dict[str, Any] = json.loads(
        (RESULTS / "ablations-smollm2-135m.json").read_text("utf-8")
    )
    return report


def ablation_table(table: str) -> str:
    """The rows of one table of the thesis, its own beside ours."""
    rows = [
        ["ours", "@1 top-1", "@1 top-5", "@2 top-1", "@2 top-5", "trained numbers"],
    ]
    for one in ablations()["variants"]:
        if table in one["tables"]:
            shares = (one[f"top{k}"][distance] for distance in (0, 1) for k in (1, 5))
            cells = [f"{share:.3f}" for share in shares]
            rows.append([one["name"], *cells, f"{one['trained_numbers']:,}"])
    theirs = [
        ["the thesis, Vicuna-7B", "@1 top-1", "@1 top-5", "@2 top-1", "@2 top-5"],
        *([name, *(f"{share:.3f}" for share in each)] for name, each in THESIS[table].items()),
    ]
    return f"{markdown_table(rows)}\n\n{markdown_table(theirs)}"


def accuracy_table() -> str:
    """The shipped prompt tokens: accuracy by distance, training, memory."""
    rows = [
        ["prompt tokens of", "distance", "top-1", "top-5", "top-10"],
    ]
    notes = []
    for folder in sorted(PARTS.iterdir(), reverse=True):
        if not (folder / "training.json").exists():
            continue
        record = json.loads((folder / "training.json").read_text("utf-8"))
        judged = record["evaluation"]
        for distance in range(len(judged["top1"])):
            shares = [f"{judged[f'top{k}'][distance]:.3f}" for k in (1, 5, 10)]
            rows.append([folder.name, str(distance + 1), *shares])
        size = (folder / "model.safetensors").stat().st_size
        tuned = RESULTS / f"tune-{folder.name}.json"
        share = ""
        if tuned.exists():
            weights = json.loads(tuned.read_text("utf-8"))["weight_bytes"]
            share = f", {size / weights:.4%} of the weights that a pass reads"
        notes.append(
            f"{folder.name}: {record['steps']} steps on {record['texts']['learned']} answers in "
            f"{record['seconds'] / 60:.0f} minutes, judged on {judged['points']:,} places in "
            f"{record['texts']['held_back']} answers that were held back; {size:,} bytes{share}."
        )
    rows += [
        ["Vicuna-7B (thesis, table 6.5)", "1", "0.485", "0.779", ""],
        ["", "2", "0.261", "0.586", ""],
    ]
    return f"{markdown_table(rows)}\n\n{' '.join(notes)}"


def speed_table() -> str:
    """PPD on the tasks of its thesis beside ANPD, both planned, by the harness of every method."""
    run, summary = found(DEV, SMALL)
    methods = ("ppd", "anpd")
    rows = [
        ["task", "texts", *(f"`{name}`: {what}" for name in methods for what in _WHAT)],
    ]
    for group in [*summary.groups, summary.overall]:
        row = [group.name, str(group.texts)]
        for name in methods:
            one = group.methods[name]
            behind = "-" if one.decode_speedup is None else f"{one.decode_speedup:.2f}x"
            row += [f"{one.stats.mean_acceptance_length:.2f}", f"{one.speedup:.2f}x", behind]
        rows.append(row)
    differ = sum(len(one.differences) for one in summary.overall.methods.values())
    note = (
        f"{SMALL}, float32, {run['machine']['processor']}, {run['machine']['threads']} threads, "
        f"at most {run['options']['max_new_tokens']} new tokens, each {times(run['repeats'])}; "
        f"{differ} texts differ from plain decoding's."
    )
    return f"{markdown_table(rows)}\n\n{note}"


_WHAT = ("tokens per pass", "speed-up", "after the prompt")


def short_tables() -> str:
    """The larger model on a few bundled prompts, with a budget and planned: short runs."""
    return f"With `--budget 64`:\n\n{_short('compare-fixed')}\n\nPlanned:\n\n{_short('compare')}"


def _short(kind: str) -> str:
    report = json.loads((RESULTS / f"{kind}-{LARGE}.json").read_text("utf-8"))
    rows = [
        ["method", "tokens/s", "speed-up", "after the prompt", "tokens per pass", "same text"],
    ]
    for one in report["methods"]:
        behind = "-" if one["decode_speedup"] is None else f"{one['decode_speedup']:.2f}x"
        rows.append(
            [
                f"`{one['method']}`",
                f"{one['tokens_per_second']:.2f}",
                f"{one['speedup']:.2f}x",
                behind,
                f"{one['mean_acceptance_length']:.2f}",
                "all" if one["identical"] else "no",
            ]
        )
    note = (
        f"{LARGE}, {len(report['prompts'])} bundled prompts, at most "
        f"{report['options']['max_new_tokens']} new tokens, each {times(report['options']['repeats'])}"
        ": a short run."
    )
    return f"{markdown_table(rows)}\n\n{note}"


def trees_table(model: str) -> str:
    """Predicted and measured speed-up by width, from `paceline tune --method ppd --verify`."""
    trees = json.loads((RESULTS / f"tune-{model}.json").read_text("utf-8"))["trees"]
    rows = [
        ["rows of a pass", "tokens per pass", "predicted", "tokens per pass, measured", "measured"],
    ]
    for one in trees["widths"]:
        measured = one["measured"]
        rows.append(
            [
                str(one["width"]),
                f"{one['tokens_per_pass']:.2f}",
                f"{one['speedup']:.2f}x",
                f"{one['measured_tokens_per_pass']:.2f}" if measured else "",
                f"{sorted(measured)[len(measured) // 2]:.2f}x" if measured else "",
            ]
        )
    return markdown_table(rows, left=0)
