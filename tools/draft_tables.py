"""What the weights of a draft model do to it, for docs/speed.md."""

from __future__ import annotations

from typing import Any

from bench_tables import markdown
from ouroboros_tables import measured


@measured("ouroboros/weights")
def draft_weights_table(report: dict[str, Any]) -> str:
    """Speculative decoding on a draft model in float32 and in 8 bits."""
    plain = report["contenders"][0]
    rows = [
        ["draft model", "over plain", "tokens per pass", "ms per draft pass", "time drafting"],
        ["---", *["--:"] * 4],
    ]
    for one in report["contenders"][1:]:
        rows.append(
            [
                one["name"],
                f"{one['tokens_per_second'] / plain['tokens_per_second']:.2f}x",
                f"{one['tokens_per_pass']:.2f}",
                f"{one['ms_per_draft_pass']:.1f}",
                f"{one['shares']['draft']:.0%}",
            ]
        )
    machine = report["machine"]
    note = (
        f"{report['compared_texts']} texts, {report['different_texts']} of them other than plain's"
    )
    return f"{markdown(rows)}\n\n{report['model']}, {machine['processor']}, {machine['threads']} threads; {note}."
