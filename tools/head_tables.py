"""Tables about Medusa and Chimera, for docs/paper-chimera.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench_tables import markdown

ROOT = Path(__file__).parent.parent
SHIPPED = {
    "Chimera": ROOT / "src/paceline/data/chimera/smollm2-135m/training.json",
    "Medusa": ROOT / "src/paceline/data/medusa/smollm2-135m/training.json",
}
ABLATIONS = ROOT / "benchmarks/results/heads"

# Table 5 of the paper, Vicuna-7B: top-1 to top-5 by head.
THEIRS = {
    "Chimera": (
        (0.66, 0.78, 0.83, 0.87, 0.90),
        (0.49, 0.55, 0.60, 0.68, 0.75),
        (0.38, 0.44, 0.49, 0.55, 0.62),
        (0.33, 0.38, 0.43, 0.46, 0.54),
    ),
    "Medusa": (
        (0.52, 0.65, 0.71, 0.74, 0.77),
        (0.29, 0.39, 0.45, 0.50, 0.53),
        (0.12, 0.25, 0.31, 0.34, 0.38),
        (0.09, 0.18, 0.23, 0.27, 0.30),
    ),
}
# Table 6: top-5 by head.
ORDERS = {
    "1-gram": (0.83, 0.65, 0.50, 0.48),
    "2-gram": (0.87, 0.71, 0.58, 0.51),
    "3-gram": (0.90, 0.75, 0.62, 0.54),
    "4-gram": (0.91, 0.75, 0.63, 0.54),
    "5-gram": (0.91, 0.76, 0.63, 0.54),
    "transformer, frozen": (0.85, 0.60, 0.49, 0.41),
    "transformer, trained": (0.89, 0.74, 0.56, 0.52),
}
FILES = {
    "1-gram": "order-1",
    "2-gram": "order-2",
    "3-gram": "order-3",
    "4-gram": "order-4",
    "5-gram": "order-5",
    "transformer, frozen": "transformer-frozen",
    "transformer, trained": "transformer-finetune",
}
OTHERS = {
    "as in the first table, short": "order-3",
    "without the residual": "no-residual",
    "Medusa": "medusa",
    "full heads": "full",
    "behind own guesses": "own-guesses",
    "distillation": "distillation",
}


def heads_table() -> str:
    """Table 5: the shipped heads beside the paper's."""
    rows = [
        ["head", "", "top-1", "top-2", "top-3", "top-4", "top-5", "paper: top-1", "top-5"],
        ["--:", "---", *["--:"] * 7],
    ]
    notes = []
    for head in range(4):
        for name, path in SHIPPED.items():
            record = json.loads(path.read_text("utf-8"))
            judged = _own(record["evaluation"])
            ours = [f"{judged[f'top{k}'][head]:.2f}" for k in range(1, 6)]
            paper = THEIRS[name][head]
            rows.append([str(head), name, *ours, f"{paper[0]:.2f}", f"{paper[4]:.2f}"])
    for name, path in SHIPPED.items():
        record = json.loads(path.read_text("utf-8"))
        size = path.with_name("model.safetensors").stat().st_size
        notes.append(
            f"{name}: {record['steps']} steps on {record['texts']['learned']} answers in "
            f"{record['seconds'] / 60:.0f} minutes on one core, judged on "
            f"{record['evaluation']['points']} places in {record['texts']['held_back']} answers "
            f"that were held back, {size / 1e6:.1f} MB."
        )
    return f"{markdown(rows)}\n\n{' '.join(notes)}"


def orders_table() -> str:
    """Table 6: what reads the newest tokens, top-5 by head, ours and the paper's."""
    rows = [
        ["", *(f"head {head}" for head in range(4)), *(f"paper: {head}" for head in range(4))],
        ["---", *["--:"] * 8],
    ]
    for name, file in FILES.items():
        found = _ablation(file)
        if found is not None:
            ours = _shares(_own(found["evaluation"])["top5"])
            rows.append([name, *ours, *_shares(ORDERS[name])])
    return markdown(rows)


def variants_table() -> str:
    """Figure 8 and what else was varied: top-1 behind the text and behind own guesses."""
    rows = [
        ["", *(f"top-1, head {head}" for head in range(4)), "numbers", "seconds"],
        ["---", *["--:"] * 6],
    ]
    for name, file in OTHERS.items():
        found = _ablation(file)
        if found is not None:
            ours = _shares(_own(found["evaluation"])["top1"])
            rows.append([name, *ours, f"{found['numbers']:,}", f"{found['seconds']:.0f}"])
    return markdown(rows)


def costs_table() -> str:
    """Drafting beside a pass of the target, by what is kept of n-grams, cold and warm."""
    report = json.loads((ABLATIONS / "costs-smollm2-135m.json").read_text("utf-8"))
    rows = [
        ["beam", "store of n-grams", "cold: draft, ms", "share of a pass", "found", "warm: draft, ms",
         "share of a pass", "found"],
        ["--:", "---", *["--:"] * 6],
    ]  # fmt: skip
    for one in report["stores"]:
        cells = [str(one["beam"]), one["store"]]
        for state in ("cold", "warm"):
            found, counts = one[state], one[state]["lookups"]
            total = sum(counts.values())
            hits = (total - counts["encoded"]) / total if total else 0.0
            cells += [f"{found['draft_ms']:.1f}", f"{found['share']:.0%}", f"{hits:.0%}"]
        rows.append(cells)
    return markdown(rows)


def _own(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Chimera's heads as the paper measures them: behind their own guesses."""
    found: dict[str, Any] = evaluation.get("own_guesses", evaluation)
    return found


def _ablation(name: str) -> dict[str, Any] | None:
    path = ABLATIONS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def _shares(values: Iterable[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]
