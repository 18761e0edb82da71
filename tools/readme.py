"""Fill the generated blocks of README.md and docs: measured tables, and the loop's source.

python tools/readme.py            rewrites the pages
python tools/readme.py --check    exits with 1 if a page is stale
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from batch_tables import joining_table, throughput_table
from bench_tables import (
    FLOAT32,
    GPU,
    LARGE,
    PUBLISHED,
    SMALL,
    TASKS,
    TASKS_FLOAT32,
    TEN,
    ablation,
    anpd_table,
    llma_table,
    overall_table,
    task_table,
    texts_table,
    trace_table,
)
from head_speed_tables import cases_table, lengths_table, times_table
from head_tables import costs_table, heads_table, orders_table, variants_table
from ouroboros_tables import OUROBOROS
from ppd_tables import (
    SPEED,
    SYNERGY,
    accuracy_table,
    memory_table,
    sizes_table,
    trees_table,
)
from serve_tables import edits_table, peers_table, serve_table
from source_tables import left_out_table, replayed_sources_table
from speed_tables import (
    caches_table,
    drafts_table,
    llama_table,
    long_texts_table,
    passes_table,
    plain_table,
    products_table,
    quality_table,
    shapes_table,
    start_up_table,
)
from trained_tables import curve_table, parts_accuracy

from paceline.tables import markdown_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
QUOTED = {ROOT / "src/paceline/loop.py": ("Batch.step", "decode")}
"""The README's excerpt of the loop: file -> functions, or methods as "Class.method"."""


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
    """The text with every generated block replaced."""
    for name, content in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no block {name!r}")
        block = f"{begin}\n{content}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def quoted_loop() -> str:
    """The source of the functions in `QUOTED`, without docstrings; methods follow a line with their
    class."""
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
    """The lines of a function except its docstring."""
    first, last = function.lineno - 1, function.end_lineno
    if ast.get_docstring(function) is None:
        return "\n".join(lines[first:last])
    docstring = function.body[0]
    return "\n".join([*lines[first : docstring.lineno - 1], *lines[docstring.end_lineno : last]])


def planning_table() -> str:
    """Planned trees against fixed budgets, on a simulated clock."""
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
    rows = [["file", *columns.values()]]
    found = report["contenders"]
    for file in found["anpd, planned"]["files"]:
        speedups = [f"{found[name]['files'][file]:.2f}x" for name in columns]
        rows.append([file.replace("_", " "), *speedups])
    return markdown_table(rows)


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"bench": lambda: overall_table(TEN, SMALL, LARGE), "loop": quoted_loop},
    ROOT / "docs/bench.md": {
        "overall-float32": lambda: overall_table(FLOAT32, SMALL),
        "overall-twelve": lambda: overall_table(PUBLISHED, SMALL),
        "tasks-ten": lambda: task_table(TEN, SMALL),
        "tasks-ten-large": lambda: task_table(TEN, LARGE),
        "texts-ten": lambda: texts_table(TEN, SMALL),
        "texts-ten-large": lambda: texts_table(TEN, LARGE),
        "overall": lambda: overall_table(TASKS, SMALL, LARGE),
        "overall-tasks-float32": lambda: overall_table(TASKS_FLOAT32, SMALL),
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
        "curve": lambda: curve_table("ppd"),
        "speed": lambda: overall_table(SPEED, LARGE),
        **{
            f"speed-{kind}": partial(overall_table, f"../ppd/{kind}", SMALL)
            for kind in ("greedy", "sampled", "typical")
        },
        "tasks": lambda: task_table(SPEED, LARGE),
        "draft": lambda: overall_table(SYNERGY, SMALL),
        "memory": lambda: memory_table(SMALL),
        "sizes": lambda: sizes_table(SMALL, LARGE),
        "trees": lambda: trees_table(SMALL),
    },
    ROOT / "docs/paper-chimera.md": {
        "heads": lambda: heads_table(SMALL, LARGE),
        "speed-large": lambda: overall_table("../heads/speed", LARGE),
        "tasks-large": lambda: task_table("../heads/speed", LARGE),
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
    ROOT / "docs/batches.md": {
        "throughput": lambda: throughput_table("throughput"),
        "throughput-float32": lambda: throughput_table("throughput-float32"),
        "joining": joining_table,
    },
    ROOT / "docs/serve.md": {
        "serve": serve_table,
        "serve-edits": edits_table,
        "serve-peers": peers_table,
    },
    ROOT / "docs/training.md": {
        "accuracy": lambda: parts_accuracy("eagle", "medusa", "chimera", "draft"),
        "curves": lambda: curve_table("eagle", "medusa", "chimera", "draft"),
    },
    ROOT / "docs/planning.md": {
        "planning": planning_table,
        "left-out": left_out_table,
        "replayed-sources": replayed_sources_table,
    },
    ROOT / "docs/speed.md": {
        "gpu-methods": lambda: overall_table(GPU, SMALL),
        "gpu-tasks": lambda: task_table(GPU, SMALL),
        "gpu-shapes": lambda: shapes_table(1, 8, 64),
        "passes": passes_table,
        "plain": plain_table,
        "products": products_table,
        "llama": lambda: llama_table(SMALL),
        "llama-large": lambda: llama_table(LARGE),
        "llama-edits": lambda: llama_table(f"edits-{LARGE}"),
        "quality": quality_table,
        "caches": caches_table,
        "long-texts": long_texts_table,
        "drafts": drafts_table,
        "start-up": start_up_table,
    },
}

if __name__ == "__main__":
    sys.exit(main())
