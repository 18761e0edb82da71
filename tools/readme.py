"""Fill the generated blocks of README.md and docs: measured tables, and the loop as it stands.

python tools/readme.py            rewrites the pages
python tools/readme.py --check    exits with 1 where one is stale
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_tables import (
    LARGE,
    PLANNED,
    SMALL,
    ablation,
    anpd_table,
    llma_table,
    markdown,
    overall_table,
    planned_table,
    task_table,
    trace_table,
)
from head_speed_tables import cases_table, lengths_table, times_table
from head_tables import costs_table, heads_table, orders_table, variants_table
from ouroboros_tables import OUROBOROS
from ppd_tables import (
    THESIS,
    ablation_table,
    accuracy_table,
    short_tables,
    speed_table,
    trees_table,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
QUOTED = {ROOT / "src/paceline/loop.py": ("Batch.step", "decode")}
"""What the README shows of the loop: file -> functions, or methods as "Class.method"."""


def main() -> int:
    """Entry point."""
    stale = 0
    for page, blocks in PAGES.items():
        old = page.read_text(encoding="utf-8")
        new = filled(page.name, old, {name: make() for name, make in blocks.items()})
        stale |= old != new
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
    return int(stale and "--check" in sys.argv)


def filled(page: str, text: str, blocks: dict[str, str]) -> str:
    """The text with every generated block made anew."""
    for name, content in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no block {name!r}")
        block = f"{begin}\n{content}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def quoted_loop() -> str:
    """The functions of `QUOTED` as they stand in the source, without docstrings; methods below the
    line of their class."""
    text, owner = "", ""
    for path, names in QUOTED.items():
        source = path.read_text(encoding="utf-8")
        found = functions_in(ast.parse(source))
        for name in names:
            if name not in found:
                raise ValueError(f"{path.name} has no {name}: change QUOTED in tools/readme.py")
            before, owner = owner, name.rpartition(".")[0]
            same = bool(owner) and owner == before
            text += "\n" if same else "\n\n"
            text += f"class {owner}:\n" if owner and not same else ""
            text += without_docstring(found[name], source.splitlines()) + "\n"
    return f"```python\n{text.strip()}\n```"


def functions_in(module: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions of a module by name, and methods as "Class.method"."""
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    owned = [(f"{owner.name}.", node) for owner in classes for node in owner.body]
    everything = [*owned, *(("", node) for node in module.body)]
    return {
        prefix + node.name: node for prefix, node in everything if isinstance(node, ast.FunctionDef)
    }


def without_docstring(function: ast.FunctionDef, lines: Sequence[str]) -> str:
    """The lines of a function but for those of its docstring."""
    first, last = function.lineno - 1, function.end_lineno
    if ast.get_docstring(function) is None:
        return "\n".join(lines[first:last])
    docstring = function.body[0]
    return "\n".join([*lines[first : docstring.lineno - 1], *lines[docstring.end_lineno : last]])


def quality_table() -> str:
    """What quantised weights cost in quality."""
    report = json.loads((RESULTS / "weights-quality-smollm2-135m.json").read_text("utf-8"))
    rows = [["weights", "perplexity", "best token as with native weights"], ["---", "--:", "--:"]]
    for name, found in report["weights"].items():
        agrees = f"{found['best_token_agrees']:.1%}"
        rows.append([f"`{name}`", f"{found['perplexity']:.3f}", agrees])
    return markdown(rows)


def passes_table() -> str:
    """Cost of a pass by width, beside transformers' own, for two models."""
    models = ["smollm2-135m", "qwen2.5-coder-1.5b"]
    reports = [
        json.loads((RESULTS / f"target-pass-{model}.json").read_text("utf-8")) for model in models
    ]
    rows = [["width"], ["--:"]]
    for model in models:
        rows[0] += [f"{model}, ms", "of one token", "transformers takes"]
        rows[1] += ["--:"] * 3
    for points in zip(*(report["passes"]["widths"] for report in reports), strict=True):
        cells = [str(points[0]["width"])]
        for point in points:
            cells += [
                f"{point['paceline_ms']:.0f}",
                f"{point['paceline_relative']:.2f}x",
                f"{point['transformers_over_paceline']:.2f}x",
            ]
        rows.append(cells)
    return markdown(rows)


def plain_table() -> str:
    """Plain decoding and reading a prompt against transformers, and memory."""
    report = json.loads((RESULTS / "target-pass-smollm2-135m.json").read_text("utf-8"))
    larger = json.loads((RESULTS / "target-pass-qwen2.5-coder-1.5b.json").read_text("utf-8"))
    plain = report["plain"]["methods"]["plain"]
    floors = [each["passes"]["floor"] for each in (report, larger)]
    shares = [floor["sides"]["paceline"]["share"] for floor in floors]
    peaks = [each["memory"]["peak_over_parameters"] for each in (report, larger)]
    rows = [
        ["smollm2-135m, plain decoding over `transformers.generate`", ""],
        ["---", "--:"],
        ["tokens/s, prompt included", f"{plain['total_speedup']['transformers']:.2f}x"],
        ["tokens/s behind the prompt", f"{plain['median_decode_speedup']['transformers']:.2f}x"],
        ["texts alike", f"{plain['identical']} of {len(report['plain']['prompts'])}"],
    ]
    rows += [
        [
            f"reading {length['tokens']} tokens over transformers",
            f"{length['transformers_over_paceline']:.2f}x",
        ]
        for length in report["prefill"]["lengths"]
    ]
    rows += [
        ["share of the floor's speed at one token, 135M and 1.5B", _both(shares, ".0%")],
        ["peak memory over the parameters, 135M and 1.5B", _both(peaks, ".2f")],
    ]
    return markdown(rows)


def planning_table() -> str:
    """Planned trees against fixed budgets, on a clock that only passes move."""
    report = json.loads((RESULTS / "planning/smollm2-135m.json").read_text("utf-8"))
    columns = {
        **{f"anpd, {budget}": f"ANPD, {budget}" for budget in (1, 3, 5)},
        "anpd, as proposed": "whole",
        "anpd as in its paper, planned": "planned",
        "anpd, planned": "planned, long",
        "anpd, planned without a curve": "no curve",
        "llma, as proposed": "LLMA, whole",
        "llma, planned": "planned, long",
        "pld, as proposed": "lookup, whole",
        "pld, planned": "planned",
    }
    rows = [["file", *columns.values()], ["---", *["--:"] * len(columns)]]
    for file, found in report["files"].items():
        speedups = [f"{found[name]['speedup']:.2f}x" for name in columns]
        rows.append([file.replace("_", " "), *speedups])
    return markdown(rows)


def llama_table(model: str) -> str:
    """Beside llama.cpp on the same file."""
    report = json.loads((RESULTS / f"llama-cpp-{model}.json").read_text("utf-8"))
    rows = [
        [
            model,
            "tokens/s",
            "decoding alone",
            "first token after",
            "over",
            "decoding",
            "first token",
        ],
        ["---", *["--:"] * 3, "---", *["--:"] * 2],
    ]
    for found in report["contestants"]:
        over = found.get("over_base")
        rows.append(
            [
                found["name"],
                f"{found['tokens_per_second']:.1f}",
                f"{found['median_decode_tokens_per_second']:.1f}",
                f"{found['median_first_seconds']:.2f} s",
                *(
                    [
                        found["base"],
                        f"{over['decode_tokens_per_second']:.2f}x",
                        f"{1 / over['first_seconds']:.2f}x",
                    ]
                    if over
                    else ["", "", ""]
                ),
            ]
        )
    return markdown(rows)


def products_table() -> str:
    """Products alone, by format and rows."""
    report = json.loads((RESULTS / "products.json").read_text("utf-8"))
    widths = next(iter(report["products"].values()))["milliseconds"]
    rows = [
        ["weights", "MB", "reading them", *(f"{width} rows" for width in widths)],
        ["---", *["--:"] * (2 + len(widths))],
    ]
    for name, found in report["products"].items():
        times = (f"{each:.1f}" for each in found["milliseconds"].values())
        read = f"{found['milliseconds_to_read']:.1f}"
        rows.append([name, f"{found['bytes'] / 1e6:.0f}", read, *times])
    machine = report["machine"]
    rate = report["products"]["Q4_K"]["gigabytes_per_second"]
    return (
        f"{markdown(rows)}\n\n{machine['processor']}, {machine['threads']} threads, "
        f"{report['tier']}, {rate:.0f} GB/s; torch's packed matrices are four of twelve."
    )


def _both(values: list[float], form: str) -> str:
    return " and ".join(f"{value:{form}}" for value in values)


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"bench": planned_table, "loop": quoted_loop},
    ROOT / "docs/bench.md": {
        "tasks-planned": lambda: task_table(SMALL, PLANNED),
        "overall": overall_table,
        "tasks-small": lambda: task_table(SMALL),
        "tasks-large": lambda: task_table(LARGE),
        "traces": trace_table,
    },
    ROOT / "docs/paper-anpd.md": {
        "anpd": anpd_table,
        "anpd-k": lambda: ablation("anpd-k"),
        "anpd-n": lambda: ablation("anpd-n"),
    },
    ROOT / "docs/paper-llma.md": {"llma": llma_table, "llma-ablation": lambda: ablation("llma")},
    ROOT / "docs/paper-ppd.md": {
        "accuracy": accuracy_table,
        "speed": speed_table,
        "short": short_tables,
        "trees": lambda: trees_table(SMALL),
        **{f"table-{table}": lambda table=table: ablation_table(table) for table in THESIS},
    },
    ROOT / "docs/paper-chimera.md": {
        "heads": heads_table,
        "orders": orders_table,
        "variants": variants_table,
        "costs": lambda: costs_table(SMALL),
        "costs-large": lambda: costs_table(LARGE),
        "lengths": lengths_table,
        "cases-fixed": lambda: cases_table("fixed"),
        "cases-planned": lambda: cases_table("planned"),
        "times": times_table,
    },
    ROOT / "docs/paper-ouroboros.md": OUROBOROS,
    ROOT / "docs/planning.md": {"planning": planning_table},
    ROOT / "docs/speed.md": {
        "passes": passes_table,
        "plain": plain_table,
        "products": products_table,
        "llama": lambda: llama_table(SMALL),
        "llama-large": lambda: llama_table(LARGE),
        "quality": quality_table,
    },
}

if __name__ == "__main__":
    sys.exit(main())
