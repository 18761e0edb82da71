"""Tables on Medusa and Chimera for docs/paper-chimera.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from papers import figures, report
from trained_tables import record_of

from paceline.tables import markdown_table

THEIRS, ORDERS = figures("chimera", "5"), figures("chimera", "6")
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
    "Chimera": "order-3",
    "Chimera without the residual": "no-residual",
    "Medusa": "medusa",
    "Chimera, full heads": "full",
    "Medusa, full heads": "medusa-full",
    "Chimera, distillation": "distillation",
    "Chimera, learned after own guesses": "own-guesses",
}


def heads_table(*models: str) -> str:
    """Table 5: shipped heads and EAGLE's steps, beside the paper's heads."""
    tops = ("top1", "top5")
    columns = [f"{model}: {top}" for model in (*models, "paper") for top in ("top-1", "top-5")]
    rows = [["head", "", *columns]]
    records = {
        name: [record_of(name.lower(), model)["evaluation"] for model in models]
        for name in (*THEIRS, "EAGLE")
    }
    for head in range(4):
        for name, found in records.items():
            ours = [_share(each[top], head) for each in found for top in tops]
            paper = THEIRS.get(name)
            theirs = [] if paper is None else [f"{paper[head][place]:.0%}" for place in (0, 4)]
            if any(ours):
                rows.append([str(head), name, *ours, *(theirs or ["", ""])])
    return markdown_table(rows, left=2)


def _share(of_heads: list[float], head: int) -> str:
    return f"{of_heads[head]:.1%}" if head < len(of_heads) else ""


def orders_table() -> str:
    """Table 6: encoders of the newest tokens, top-5 by head, ours and the paper's; see `_both`."""
    rows = [
        ["", *(f"head {head}" for head in range(4)), *(f"paper: {head}" for head in range(4))],
    ]
    for name, file in FILES.items():
        theirs = [f"{share:.2f}" for share in ORDERS[name]]
        rows.append([name, *_both(report(f"heads/{file}")["evaluation"], "top5"), *theirs])
    return f"{markdown_table(rows)}\n\n{_basis(FILES.values())}"


def variants_table() -> str:
    """Figure 8 and other variants: top-1 by head; see `_both`."""
    rows = [
        ["", *(f"top-1, head {head}" for head in range(4)), "steps", "numbers", "MB", "minutes"],
    ]
    for name, file in OTHERS.items():
        found = report(f"heads/{file}")
        size = f"{found['bytes'] / 1e6:.1f}" if "bytes" in found else ""
        counts = str(found["steps"]), f"{found['numbers']:,}", size, f"{found['seconds'] / 60:.1f}"
        rows.append([name, *_both(found["evaluation"], "top1"), *counts])
    return f"{markdown_table(rows)}\n\n{_basis(OTHERS.values())}"


NATIVE = "native"
"""How drafters stored layers before there was a choice."""


def costs_table(model: str) -> str:
    """Drafting cost beside a target pass, by n-gram store, cold and warm."""
    found = report(f"heads/costs-{model}")
    what = ("draft, ms", "share of a pass", "in all", "found")
    rows = [
        ["", "levels", "layers", "beam", "store of n-grams",
         *(f"{state}: {each}" for state in ("cold", "warm") for each in what)],
    ]  # fmt: skip
    for one in found["rows"]:
        beam = "" if one["beam"] is None else str(one["beam"])
        cells = [one["method"], one["levels"], one.get("weights", NATIVE), beam, one["store"]]
        for state in ("cold", "warm"):
            cells += _cost(one[state])
        rows.append(cells)
    machine = found["machine"]
    note = f"{model}, {machine['processor']}, {machine['threads']} threads."
    return f"{markdown_table(rows, left=5)}\n\n{note}"


def _cost(found: dict[str, Any]) -> list[str]:
    """The cells of one state, cold or warm."""
    counts = found.get("lookups") or {}
    total = sum(counts.values())
    hits = f"{(total - counts['encoded']) / total:.0%}" if total else ""
    in_all = f"{found['total_share']:.0%}" if "total_share" in found else ""
    return [f"{found['draft_ms']:.1f}", f"{found['share']:.0%}", in_all, hits]


def _both(evaluation: dict[str, Any], top: str) -> list[str]:
    """By head: after own guesses, as in the paper, and in brackets after the text, which counts in
    decoding. Heads that do not read each other's guesses have one figure."""
    text = [f"{share:.2f}" for share in evaluation[top]]
    if "own_guesses" in evaluation:
        own = evaluation["own_guesses"][top]
        return [f"{mine:.2f} ({share})" for mine, share in zip(own, text)]
    return text


def _basis(files: Iterable[str]) -> str:
    """How much data the rows are based on."""
    counts = {
        (found["evaluation"]["points"], found["texts"]["held_back"], _learned(found))
        for found in (report(f"heads/{file}") for file in files)
    }
    return " ".join(
        f"Learned from {learned}, judged on {points:,} places in {held_back} others "
        f"({_known(points)})."
        for points, held_back, learned in sorted(counts)
    )


def _learned(record: dict[str, Any]) -> str:
    """The amount of training data."""
    texts = record["texts"]
    read = f" and {texts['read']:,} texts that were only read" if texts.get("read") else ""
    return f"{texts['learned']:,} answers{read}"


def _known(points: int) -> str:
    """How precisely a share is known, if places were independent."""
    return f"a share of 0.3 is known to within {1.96 * (0.3 * 0.7 / points) ** 0.5:.3f}"
