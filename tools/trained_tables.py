"""Tables of the training records in the package, for docs."""

from __future__ import annotations

from typing import Any

from papers import PARTS, listed, trained

from paceline.tables import markdown_table

_CURVE_ROWS = 8


def accuracy(*methods: str) -> str:
    """Accuracy by head, or drafting step, on texts of the test split."""
    tops = {f"top-{count}": f"top{count}" for count in (2, 3, 5, 10)}
    rows = [["parts", "head", "top-1 (95 %)", *tops, "not in its vocabulary"]]
    notes = []
    for method in methods:
        for model, record in trained(method).items():
            found = record["evaluation"]
            for head, share in enumerate(found["top1"]):
                low, high = found["top1_interval"][head]
                more = [f"{found[top][head]:.1%}" for top in tops.values()]
                lost = f"{found['cannot_be_guessed'][head]:.1%}"
                top = f"{share:.1%} ({low:.1%} to {high:.1%})"
                rows.append([f"{method}, `{model}`", str(head), top, *more, lost])
            notes.append(_note(method, model, record))
    return f"{markdown_table(rows)}\n\n{' '.join(notes)}"


def curves(*methods: str) -> str:
    """Accuracy of first guesses on validation texts, by places learned from."""
    points = []
    for method in methods:
        for model, record in trained(method).items():
            curve, each = record["loss_curve"], record["places"] / record["steps"]
            shown = curve[::-1][:: max(1, len(curve) // _CURVE_ROWS)][::-1]
            points += [{"name": f"{method}, `{model}`", "each": each, **point} for point in shown]
    columns = {
        "parts": "{0[name]}",
        "places": lambda one: f"{one['step'] * one['each']:,.0f}",
        "loss": "{0[loss]:.3f}",
        "held back": "{0[held_back_loss]:.3f}",
        "top-1 by distance": lambda one: ", ".join(f"{share:.1%}" for share in one["top1"]),
    }
    return listed(points, columns)


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
