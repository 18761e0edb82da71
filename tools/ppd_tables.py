"""Tables of docs/paper-ppd.md."""

from __future__ import annotations

from statistics import median_high
from typing import Any

from bench_tables import LENGTH, overall_of
from papers import LARGE, PARTS, SMALL, Cell, Cells, crossed, figures, found, size_of, trained

from paceline.drafters.prompt_tokens import PromptTokens
from paceline.planning.ppd.adaptive_tree import Limits
from paceline.planning.ppd.tree_search import build_tree
from paceline.tables import markdown_table

_DISTANCES = 3
_COMPARED = (("ppd", SMALL), ("medusa", SMALL), ("ppd", LARGE))


def distances() -> str:
    """Accuracy of guesses by distance, for PPD and Medusa, ours and the thesis's."""
    shares: dict[str, list[list[str]]] = {}
    for method, model in _COMPARED:
        judged = trained(method)[model]["evaluation"]
        firsts = [
            f"{share:.3f} ({low:.3f} to {high:.3f})"
            for share, (low, high) in zip(judged["top1"], judged["top1_interval"])
        ]
        more = ([f"{share:.3f}" for share in judged[top]] for top in ("top5", "top10"))
        shares[f"`{method}`, {model}"] = [*map(list, zip(firsts, *more))]
    near = [f"{share:.3f}" for share in figures("ppd", "6.5")["1 EPT, 12 epochs"]]
    for label, far in figures("ppd", "6.3").items():
        known = [near[:2], near[2:], ["", ""]] if label == "PPD" else [["", ""]] * 3
        shares[f"thesis: {label}"] = [[*two, f"{top10:.3f}"] for two, top10 in zip(known, far)]
    rows = [["", "distance", "top-1 (95 %)", "top-5", "top-10"]]
    for label, by_distance in shares.items():
        for distance, cells in enumerate(by_distance[:_DISTANCES]):
            rows.append(["" if distance else label, str(distance + 1), *cells])
    return f"{markdown_table(rows)}\n\n{' '.join(_note(*each) for each in _COMPARED)}"


def _note(method: str, model: str) -> str:
    record = trained(method)[model]
    texts, judged = record["texts"], record["evaluation"]
    return (
        f"`{method}`, {model}: {record['steps']:,} steps on {texts['train']['texts']:,} texts in "
        f"{record['seconds'] / 60:.0f} minutes, judged on {judged['points']:,} places in "
        f"{judged['texts']} others; {size_of(method, model):,} bytes."
    )


def greedy() -> str:
    """Both models in float32; the 1.5B in two runs."""
    large = found(f"ppd/greedy-{LARGE}", f"ppd/greedy-rest-{LARGE}")
    return overall_of({SMALL: found(f"ppd/greedy-{SMALL}"), LARGE: large})


def sizes() -> str:
    """Tokens per pass by tree size, dynamic and static, predicted and measured (figure 6.6a)."""
    run, summary = found(f"ppd/sizes-{SMALL}")
    methods = summary.overall.methods
    cells: Cells = {}
    for size in (name.rpartition("=")[2] for name in methods if name.startswith("ppd:size=")):
        for model in (SMALL, LARGE):
            dynamic, static = _promised(model, int(size))
            cells[size, f"{model}: dynamic"] = f"{dynamic:.2f}"
            cells[size, (model, "static")] = f"{static:.2f}"
            if model == SMALL:
                measured = methods[f"ppd:size={size}"], methods[f"ppd:shape=static,size={size}"]
                cells[size, "dynamic, measured"] = LENGTH.format(measured[0])
                cells[size, "static, measured"] = LENGTH.format(measured[1])
    return (
        f"{crossed('size', cells, left=0)}\n\nMeasured on {summary.overall.texts} texts of "
        f"{len(summary.groups)} tasks, at most {run['options']['max_new_tokens']} tokens each."
    )


def _promised(model: str, size: int) -> list[float]:
    """Predicted tokens per pass of the dynamic and the static tree."""
    parts = PromptTokens.found_in(PARTS / "ppd" / model)
    assert parts is not None and parts.acceptance is not None  # noqa: S101 - they are shipped
    table = parts.acceptance
    floors = (Limits().floor, table.distances)
    return [build_tree(table, size, floor).tokens_per_pass for floor in floors]


def over_one(top: str) -> Cell:
    """How much more often guesses are right than with one embedding, in the same places."""

    def cell(found: dict[str, Any]) -> str:
        if f"{top}_over_one" not in found:
            return ""
        low, high = found[f"{top}_over_one_interval"]
        return f"{found[f'{top}_over_one']:+.3f} ({low:.3f} to {high:.3f})"

    return cell


def measured(one: dict[str, Any]) -> str:
    """The measured speed-up of a tree, from `paceline tune --method ppd --verify`."""
    return f"{median_high(one['measured']):.2f}x" if one["measured"] else ""
