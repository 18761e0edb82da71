"""Summary and table of what llama_cpp.py measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

from tables import new_table, number, show


class Named(Protocol):
    """A row of the table. base: name of the row it is compared with."""

    @property
    def name(self) -> str: ...

    @property
    def base(self) -> str: ...


def summary(
    contestants: Sequence[Named], records: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row per contestant over all prompts."""
    results = {each.name: [r["results"][each.name] for r in records] for each in contestants}
    return [_row(each, results) for each in contestants]


def _row(contestant: Named, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found = results[contestant.name]
    bases = results.get(contestant.base)
    tokens, rounds, drafted = (
        sum(each[key] for each in found) for key in ("tokens", "rounds", "drafted")
    )
    row = {
        "name": contestant.name,
        "base": contestant.base,
        "tokens_per_second": tokens / sum(each["seconds"] for each in found),
        "acceptance_length": tokens / rounds,
        "accepted": (tokens - rounds) / drafted if drafted else None,
        "tokens_as_base": [each["tokens_as_base"] for each in found],
        "tokens_as_plain": [each["tokens_as_plain"] for each in found],
    }
    for key in ("decode_tokens_per_second", "first_seconds"):
        known = [each[key] for each in found if each[key] is not None]
        row[f"median_{key}"] = median(known) if known else None
    if bases is not None:
        row["over_base"] = {
            "tokens_per_second": _median_ratio(found, bases, "tokens_per_second"),
            "decode_tokens_per_second": _median_ratio(found, bases, "decode_tokens_per_second"),
            "first_seconds": _median_ratio(found, bases, "first_seconds"),
        }
    return row


def _median_ratio(
    found: Sequence[dict[str, Any]], bases: Sequence[dict[str, Any]], key: str
) -> float | None:
    """Over the prompts."""
    ratios = [one[key] / base[key] for one, base in zip(found, bases) if one[key] and base[key]]
    return median(ratios) if ratios else None


def show_report(report: dict[str, Any]) -> None:
    title = (
        f"{report['gguf']['name']}, {report['threads']} threads, {report['max_new_tokens']} new "
        f"tokens, {len(report['prompts'])} prompts, medians of {report['repeats']}"
    )
    columns = ("tokens/s", "of base", "decoding", "of base", "first s", "of base")
    table = new_table(title, "", *columns, "a pass", "accepted", "base", "as base", "as own plain")
    for row in report["contestants"]:
        over = row.get("over_base", {})
        table.add_row(
            row["name"],
            number(row["tokens_per_second"]),
            number(over.get("tokens_per_second"), "x"),
            number(row["median_decode_tokens_per_second"]),
            number(over.get("decode_tokens_per_second"), "x"),
            number(row["median_first_seconds"]),
            number(over.get("first_seconds"), "x"),
            number(row["acceptance_length"]),
            number(row["accepted"]),
            row["base"],
            _range(row["tokens_as_base"]),
            _range(row["tokens_as_plain"]),
        )
    show(table)


def _range(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{min(known)} to {max(known)}" if known else "-"
