"""Tables of the training records in the package, for docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from papers import Blocks

from paceline.tables import markdown_table

PARTS = Path(__file__).parent.parent / "src/paceline/data"
_CURVE_ROWS = 8


def parts_accuracy(*methods: str) -> str:
    """Accuracy by head, or drafting step, on texts of the test split."""
    rows = [
        ["parts", "head", "top-1 (95 %)", "top-2", "top-3", "top-5", "top-10", "not in its vocabulary"],
    ]  # fmt: skip
    notes = []
    for method in methods:
        for model, record in _records(method).items():
            found = record["evaluation"]
            # An earlier trainer chose the step on the same texts that it was judged on.
            if "top1_interval" not in found:
                continue
            for head, share in enumerate(found["top1"]):
                low, high = found["top1_interval"][head]
                more = [f"{found[f'top{k}'][head]:.1%}" for k in (2, 3, 5, 10)]
                lost = f"{found['cannot_be_guessed'][head]:.1%}"
                top = f"{share:.1%} ({low:.1%} to {high:.1%})"
                rows.append([f"{method}, `{model}`", str(head), top, *more, lost])
            notes.append(_note(method, model, record))
    return f"{markdown_table(rows)}\n\n{' '.join(notes)}"


def curve_table(*methods: str) -> str:
    """Accuracy of first guesses on validation texts, by places learned from."""
    rows = [["parts", "places", "loss", "held back", "top-1 by distance"]]
    records = {
        f"{method}, `{name}`": record
        for method in methods
        for name, record in _records(method).items()
        if "places" in record  # earlier trainers did not count them
    }
    for name, record in records.items():
        curve, each = record["loss_curve"], record["places"] / record["steps"]
        apart = max(1, len(curve) // _CURVE_ROWS)
        for point in curve[::-1][::apart][::-1]:
            tops = ", ".join(f"{share:.1%}" for share in point["top1"])
            places = f"{point['step'] * each:,.0f}"
            losses = f"{point['loss']:.3f}", f"{point['held_back_loss']:.3f}"
            rows.append([name, places, *losses, tops])
    return markdown_table(rows)


def _note(method: str, model: str, record: dict[str, Any]) -> str:
    found = record["evaluation"]
    size = (PARTS / method / model / "model.safetensors").stat().st_size
    low, high = found["tokens_per_pass_interval"]
    return (
        f"{method}, {model}: {record['places']:,} places in {record['steps']:,} steps, "
        f"{record['speed']['places_per_second']:.0f} a second; judged on {found['points']:,} places "
        f"in {found['texts']} texts; chains of likeliest guesses bring "
        f"{found['tokens_per_pass']:.2f} tokens per pass ({low:.2f} to {high:.2f}); "
        f"{size / 1e6:.1f} MB."
    )


def record_of(method: str, model: str) -> dict[str, Any]:
    """The training record of the parts for a model."""
    path = PARTS / method / model / "training.json"
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record


def _records(method: str) -> dict[str, dict[str, Any]]:
    names = sorted(path.parent.name for path in (PARTS / method).glob("*/training.json"))
    return {name: record_of(method, name) for name in names}


TRAINING: Blocks = {
    "accuracy": lambda: parts_accuracy("eagle", "medusa", "chimera", "draft"),
    "curves": lambda: curve_table("eagle", "medusa", "chimera", "draft"),
}
