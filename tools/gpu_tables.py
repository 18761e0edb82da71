"""Print the results of `make gpu` as Markdown.

python tools/gpu_tables.py [FOLDER]   prints one section per kind of piece that has results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_tables import by_task, overall

from paceline.bench.metrics import summarise
from paceline.bench.results import read_results
from paceline.errors import PacelineError
from paceline.tables import markdown_table

FOLDER = Path(__file__).parent.parent / "benchmarks/results/gpu"

Rows = list[list[str]]


def main() -> int:
    """Entry point."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    try:
        text = tables(folder)
    except (PacelineError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"gpu_tables: {folder} holds a damaged result: {error!r}\n")
        return 2
    sys.stdout.write(f"{text or f'nothing is in {folder} yet: run make gpu'}\n")
    return 0


def tables(folder: Path) -> str:
    """All sections, under headings; "" if there are no results."""
    sections = []
    for heading, make in SECTIONS.items():
        if body := make(folder):
            sections.append(f"### {heading}\n\n{body}")
    return "\n\n".join(sections)


def _found(folder: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Result files of a kind: the rest of their names, and their contents."""
    for path in sorted(folder.glob(f"{kind}-*.json")):
        text = path.read_text(encoding="utf-8")
        if text.strip():  # a file may be opened long before it is written
            yield path.stem.removeprefix(f"{kind}-"), json.loads(text)


def _one(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _table(headings: Sequence[str], rows: Rows, left: int = 1) -> str:
    """A table whose first `left` columns are text and the others numbers; "" without rows."""
    return markdown_table([headings, *rows], left) if rows else ""


def machine(folder: Path) -> str:
    """The machine that was measured."""
    content = _one(folder, "machine")
    if content is None:
        return ""
    found, versions = content["found"], content["versions"]
    kernels = found["kernel_microseconds"]
    rows = [
        ["device", found.get("name", found["device"])],
        ["torch, CUDA, transformers", f"{versions['torch']}, {found['cuda']}, "
         f"{versions['transformers']}"],
        ["memory", _gigabytes(found.get("memory_bytes"))],
        ["bandwidth of a copy, GB/s", f"{found['bandwidth_gb_per_s']:.0f}"],
        *([f"a kernel that does nothing, {name.replace('_', ' ')}, µs", f"{value:.2f}"]
          for name, value in kernels.items()),
    ]  # fmt: skip
    return _table(["", ""], rows)


def tests(folder: Path) -> str:
    """How many tests passed, and which did not."""
    content = _one(folder, "tests")
    if content is None:
        return ""
    counts = ", ".join(f"{count} {name}" for name, count in content["counts"].items())
    failed = [
        [f"`{name}`", found.get("reason", "")]
        for name, found in content["tests"].items()
        if found["outcome"] == "failed"
    ]
    listed = _table(["failed", "reason"], failed, left=2)
    return f"{counts}.\n\n{listed}".strip()


def losslessness(folder: Path) -> str:
    """Texts compared with transformers' and plain decoding's, including unfinished runs."""
    rows = []
    for path in sorted(folder.glob("losslessness-*.jsonl")):
        lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        records = [json.loads(line) for line in lines]
        for greedy in (True, False):
            rows.append([path.stem.removeprefix("losslessness-"), *_compared(records, greedy)])
    return _table(
        ["dtype", "compared with", "prompts", "texts", "other texts", "largest gap"], rows, left=2
    )


def _compared(records: Sequence[dict[str, Any]], greedy: bool) -> list[str]:
    texts, gaps = 0, []
    for record in records:
        methods, seeds = len(record["methods"]), len(record["seeds"])
        texts += methods if greedy else (methods - 1) * seeds
        gaps += [
            abs(found.get("decision_gap", 0.0))
            for found in record["differences"]
            if (found["mode"] == "greedy") == greedy
        ]
    other = "`generate`, greedy" if greedy else "plain decoding, sampled"
    widest = f"{max(gaps):.2g}" if gaps else "-"
    return [other, str(len(records)), str(texts), str(len(gaps)), widest]


def tuning(folder: Path) -> str:
    """Passes by width, and the floor."""
    parts = []
    for label, content in _found(folder, "tune"):
        contexts = sorted({point["context"] for point in content["curve"]})
        costs = {(p["width"], p["context"]): p["milliseconds"] for p in content["curve"]}
        rows = [
            [str(width), *(f"{costs[width, context]:.2f}" for context in contexts)]
            for width in sorted({width for width, _ in costs})
        ]
        rows.append(["floor", *[f"{content['floor_milliseconds']:.2f}"] * len(contexts)])
        headings = ["width", *(f"ms at {context}" for context in contexts)]
        graphs = content["graphs"]
        parts.append(f"{label}, {content['dtype']}, {_graphs(graphs)}:\n\n{_table(headings, rows)}")
    return "\n\n".join(parts)


def _graphs(graphs: dict[str, Any] | None) -> str:
    if not graphs or not graphs["static"]:
        return "no graphs"
    if graphs.get("failed"):
        return f"graphs failed ({graphs['failed']})"
    return f"{graphs['captured']} graphs of {graphs['shapes']} shapes"


def methods(folder: Path) -> str:
    """Every method beside transformers, overall and by task."""
    runs = {}
    for path in sorted((folder / "methods").glob("run-*.jsonl")):
        header, entries = read_results(path)
        if entries:
            runs[path.stem.removeprefix("run-")] = (header["run"], summarise(entries))
    if not runs:
        return ""
    tasks = [f"{name}:\n\n{by_task(summary)}" for name, (_, summary) in runs.items()]
    return "\n\n".join([overall(runs), *tasks])


def batches(folder: Path) -> str:
    """Tokens per second by number of texts at once."""
    rows = [
        [
            label,
            f"`{row['method']}`",
            str(row["at_once"]),
            f"{row['tokens_per_second']:.0f}",
            f"{row['tokens_per_second_over_one']:.2f}x",
            f"{row['tokens_per_round']:.2f}",
        ]
        for label, content in _found(folder, "batches")
        for row in content["throughput"]["table"]
    ]
    headings = ["model", "method", "texts at once", "tokens/s", "over one", "tokens per round"]
    return _table(headings, rows, left=2)


def passes(folder: Path) -> str:
    """Milliseconds of a pass: compiled, graphs, eager, transformers."""
    columns: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    for label, content in _found(folder, "passes"):
        way, _, model = label.partition("-")
        section = content.get("passes")
        for found in [section, *section["others"]] if section else []:
            own = columns.setdefault((model, found["context"]), {})
            for row in found["widths"]:
                cells = own.setdefault(row["width"], {})
                cells |= {way: row["paceline_ms"], "transformers": row["transformers_ms"]}
    rows = [
        [model, str(context), str(width), *(_ms(cells.get(way)) for way in _WAYS)]
        for (model, context), widths in sorted(columns.items())
        for width, cells in sorted(widths.items())
    ]
    return _table(["model", "context", "width", *(f"{way}, ms" for way in _WAYS)], rows)


_WAYS = ("compiled", "graphs", "eager", "transformers")


def shapes(folder: Path, widths: Sequence[int] = ()) -> str:
    """Milliseconds of passes of models with random weights, by engine. widths: by default all."""
    content = _one(folder, "shapes")
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in content["shapes"] if content else []:
        for width, context, milliseconds in row["points"]:
            found.setdefault((row["model"], context, width), {})[row["engine"]] = milliseconds
    engines = [*dict.fromkeys(engine for cells in found.values() for engine in cells)]
    rows = [
        [model, str(context), str(width), *(_ms(cells.get(engine)) for engine in engines)]
        for (model, context, width), cells in sorted(found.items())
        if width in widths or not widths
    ]
    return _table(["model", "context", "width", *(f"{name}, ms" for name in engines)], rows)


def memory(folder: Path) -> str:
    """Memory after loading, and its peak while a text is written."""
    rows = [
        [label, side["side"], _gigabytes(side["loaded_bytes"]), str(text["context"]),
         _gigabytes(text["peak_bytes"])]
        for label, content in _found(folder, "memory")
        for side in content["sides"]
        for text in side["texts"]
    ]  # fmt: skip
    return _table(["model", "", "loaded", "prompt tokens", "at most"], rows, left=2)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _gigabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e9:.2f} GB"


SECTIONS: dict[str, Callable[[Path], str]] = {
    "Machine": machine,
    "Tests that need a GPU": tests,
    "Losslessness": losslessness,
    "What passes cost": tuning,
    "Methods beside transformers": methods,
    "Texts at once": batches,
    "Passes beside transformers": passes,
    "Models with random weights": shapes,
    "Memory": memory,
}

if __name__ == "__main__":
    sys.exit(main())
