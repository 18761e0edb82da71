"""Tables of the training records in the package, for docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from papers import size_of, trained

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


def points(*methods: str) -> Iterator[dict[str, Any]]:
    """Points of learning curves: first guesses on validation texts, by places learned from."""
    for method in methods:
        for model, record in trained(method).items():
            curve, each = record["loss_curve"], record["places"] / record["steps"]
            for one in curve[::-1][:: max(1, len(curve) // _CURVE_ROWS)][::-1]:
                more = {"tops": ", ".join(f"{share:.1%}" for share in one["top1"])}
                yield {**one, **more, "name": f"{method}, `{model}`", "places": one["step"] * each}


def _note(method: str, model: str, record: dict[str, Any]) -> str:
    found = record["evaluation"]
    low, high = found["tokens_per_pass_interval"]
    return (
        f"{method}, {model}: {record['places']:,} places in {record['steps']:,} steps, "
        f"{record['speed']['places_per_second']:.0f} a second; judged on {found['points']:,} places "
        f"in {found['texts']} texts; chains of likeliest guesses bring "
        f"{found['tokens_per_pass']:.2f} tokens per pass ({low:.2f} to {high:.2f}); "
        f"{size_of(method, model) / 1e6:.1f} MB."
    )
