"""Tables of docs/serve.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from paceline.tables import markdown_table

__all__ = ["edits_table", "peers_table", "serve_table"]

RESULTS = Path(__file__).parent.parent / "benchmarks/results"
KINDS = ("chat", "summary", "edit")


def serve_table() -> str:
    """All kinds of requests on the default model."""
    return _throughput(RESULTS / "serve-smollm2-135m.json", KINDS)


def edits_table() -> str:
    """Edits on the larger model, with and without a prediction."""
    return _throughput(RESULTS / "serve-edits-qwen2.5-coder-1.5b.json", ())


def _throughput(file: Path, kinds: Sequence[str]) -> str:
    """Throughput and latency by clients and method; `off` is the base of the ratios."""
    report = json.loads(file.read_text("utf-8"))
    rows = [
        ["clients", "method", "tokens/s", "over off", *kinds, "first token", "95 %"],
    ]
    base = {each["clients"]: each for each in report["rows"] if each["variant"] == "off"}
    for each in report["rows"]:
        off = base[each["clients"]]
        speed = each["tokens_per_second"]
        each_kind = [
            f"{_speed(each, kind) / _speed(off, kind):.2f}x" if _speed(off, kind) else "-"
            for kind in kinds
        ]
        first = (f"{1e3 * each[f'first_token_{name}']:.0f} ms" for name in ("median", "p95"))
        over = f"{speed / off['tokens_per_second']:.2f}x"
        rows.append(
            [str(each["clients"]), each["variant"], f"{speed:.0f}", over, *each_kind, *first]
        )
    return markdown_table(rows, left=2)


def peers_table() -> str:
    """Other servers beside paceline's plain decoding."""
    report = json.loads((RESULTS / "serve-peers-smollm2-135m.json").read_text("utf-8"))
    rows = [
        ["clients", "server", "at once", "tokens/s", "over plain", "first token"],
    ]
    for each in report["rows"]:
        first = each["first_token_median"]
        rows.append(
            [
                str(each["clients"]),
                each["server"],
                str(each["at_once"]),
                f"{each['tokens_per_second'] or 0.0:.0f}",
                f"{each['over_plain']:.2f}x",
                "-" if first is None else f"{1e3 * first:.0f} ms",
            ]
        )
    return markdown_table(rows, left=2)


def _speed(row: dict[str, dict[str, dict[str, float]]], kind: str) -> float:
    return row["kinds"].get(kind, {}).get("tokens_per_second", 0.0)
