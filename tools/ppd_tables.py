"""Tables on PPD for docs/paper-ppd.md."""

from __future__ import annotations

from statistics import median_high
from typing import Any

from bench_tables import found, overall, overall_table, task_table
from papers import LARGE, RESULTS, SMALL, Blocks, figures, listed, report
from trained_tables import PARTS, curve_table, record_of

from paceline.bench.metrics import summarise
from paceline.bench.results import read_results
from paceline.drafters.prompt_tokens import PromptTokens
from paceline.planning.ppd.adaptive_tree import Limits
from paceline.planning.ppd.tree_search import build_tree
from paceline.tables import markdown_table

_DISTANCES = 3
_COMPARED = (("ppd", SMALL), ("medusa", SMALL), ("ppd", LARGE))


def accuracy_table() -> str:
    """Accuracy of guesses by distance, for PPD and Medusa, ours and the thesis's."""
    rows = [["", "distance", "top-1 (95 %)", "top-5", "top-10"]]
    for method, model in _COMPARED:
        judged = record_of(method, model)["evaluation"]
        for distance in range(_DISTANCES):
            more = [f"{judged[f'top{k}'][distance]:.3f}" for k in (5, 10)]
            label = f"`{method}`, {model}" if distance == 0 else ""
            rows.append([label, str(distance + 1), _with_interval(judged, distance), *more])
    near = figures("ppd", "6.5")["1 EPT, 12 epochs"]
    for label, far in figures("ppd", "6.3").items():
        for distance, top10 in enumerate(far):
            known = near[2 * distance : 2 * distance + 2] if label == "PPD" else []
            shares = [f"{share:.3f}" for share in known] or ["", ""]
            first = f"thesis: {label}" if distance == 0 else ""
            rows.append([first, str(distance + 1), *shares, f"{top10:.3f}"])
    notes = [_note(method, model) for method, model in _COMPARED]
    return f"{markdown_table(rows)}\n\n{' '.join(notes)}"


def _with_interval(judged: dict[str, Any], distance: int) -> str:
    share, intervals = f"{judged['top1'][distance]:.3f}", judged.get("top1_interval")
    if intervals is None:
        return share
    low, high = intervals[distance]
    return f"{share} ({low:.3f} to {high:.3f})"


def _note(method: str, model: str) -> str:
    record = record_of(method, model)
    texts, judged = record["texts"], record["evaluation"]
    learned = texts["learned"] if "learned" in texts else texts["train"]["texts"]
    held_back = texts["held_back"] if "held_back" in texts else judged["texts"]
    size = (PARTS / method / model / "model.safetensors").stat().st_size
    return (
        f"`{method}`, {model}: {record['steps']:,} steps on {learned:,} texts in "
        f"{record['seconds'] / 60:.0f} minutes, judged on {judged['points']:,} places in {held_back} "
        f"others; {size:,} bytes."
    )


def greedy_table() -> str:
    """Both models in float32; the 1.5B in two runs."""
    runs = [
        read_results(RESULTS / f"ppd/{kind}-{LARGE}.jsonl") for kind in ("greedy", "greedy-rest")
    ]
    entries = [entry for _, lines in runs for entry in lines]
    large = runs[0][0]["run"], summarise(entries)
    return overall({SMALL: found("ppd/greedy", SMALL), LARGE: large})


def memory_table(*models: str) -> str:
    """Memory of processes that loaded a model and decoded with a method (figure 6.4)."""
    rows = [["model", "method", "parts, MB", "process, MB", "over plain", "of plain"]]
    for model in models:
        methods = report(f"ppd/memory-{model}")["methods"]
        held = {one["method"]: one["points"][-1]["resident_bytes"] for one in methods}
        for method, resident in held.items():
            folder = PARTS / method.partition(":")[0].replace("speculative", "draft") / model
            files = folder.glob("*.safetensors") if method != "plain" else ()
            parts = sum(file.stat().st_size for file in files)
            more = resident - held["plain"]
            cells = [f"{parts / 1e6:.2f}" if parts else "", f"{resident / 1e6:,.0f}"]
            cells += [f"{more / 1e6:+,.0f}", f"{more / held['plain']:+.1%}"]
            rows.append([model, f"`{method}`", *cells])
    return markdown_table(rows)


def sizes_table(*models: str) -> str:
    """Tokens per pass by tree size, dynamic and static, predicted and measured (figure 6.6a)."""
    shapes = {"dynamic": "ppd:size={}", "static": "ppd:shape=static,size={}"}
    run, summary = found("ppd/sizes", SMALL)
    methods = summary.overall.methods
    sizes = [int(name.rpartition("=")[2]) for name in methods if name.startswith("ppd:size=")]
    rows = [["size"]]
    for model in models:
        measured = [f"{shape}, measured" for shape in shapes] if model == SMALL else []
        rows[0] += [f"{model}: dynamic", "static", *measured]
    for size in sizes:
        row = [str(size)]
        for model in models:
            row += [f"{tau:.2f}" for tau in _promised(model, size)]
            if model == SMALL:
                runs = (methods[name.format(size)].stats for name in shapes.values())
                row += [f"{stats.mean_acceptance_length:.2f}" for stats in runs]
        rows.append(row)
    note = (
        f"Measured on {summary.overall.texts} texts of {len(summary.groups)} tasks, at most "
        f"{run['options']['max_new_tokens']} tokens each."
    )
    return f"{markdown_table(rows, left=0)}\n\n{note}"


def _promised(model: str, size: int) -> list[float]:
    """Predicted tokens per pass of the dynamic and the static tree."""
    parts = PromptTokens.found_in(PARTS / "ppd" / model)
    assert parts is not None and parts.acceptance is not None  # noqa: S101 - they are shipped
    table = parts.acceptance
    floors = (Limits().floor, table.distances)
    return [build_tree(table, size, floor).tokens_per_pass for floor in floors]


def trees_table(model: str) -> str:
    """Predicted and measured speed-up by width, from `paceline tune --method ppd --verify`."""

    def tokens(one: dict[str, Any]) -> str:
        return f"{one['measured_tokens_per_pass']:.2f}" if one["measured"] else ""

    def speedup(one: dict[str, Any]) -> str:
        return f"{median_high(one['measured']):.2f}x" if one["measured"] else ""

    columns = {
        "rows of a pass": "{width}".format_map,
        "tokens per pass": "{tokens_per_pass:.2f}".format_map,
        "predicted": "{speedup:.2f}x".format_map,
        "tokens per pass, measured": tokens,
        "measured": speedup,
    }
    return listed(report(f"ppd/tune-{model}")["trees"]["widths"], columns, left=0)


PPD: Blocks = {
    "accuracy": accuracy_table,
    "curve": lambda: curve_table("ppd"),
    "speed": lambda: overall_table("ppd/speed", LARGE),
    "speed-greedy": greedy_table,
    "speed-sampled": lambda: overall_table("ppd/sampled", SMALL, LARGE),
    "speed-typical": lambda: overall_table("ppd/typical", SMALL, LARGE),
    "tasks": lambda: task_table("ppd/speed", LARGE),
    "draft": lambda: overall_table("ppd/draft", SMALL),
    "memory": lambda: memory_table(SMALL),
    "sizes": lambda: sizes_table(SMALL, LARGE),
    "trees": lambda: trees_table(SMALL),
}
