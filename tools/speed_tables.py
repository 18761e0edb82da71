"""Tables of docs/speed.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from paceline.tables import markdown_table

__all__ = [
    "caches_table",
    "drafts_table",
    "llama_table",
    "long_texts_table",
    "passes_table",
    "plain_table",
    "products_table",
    "quality_table",
    "shapes_table",
    "start_up_table",
]

RESULTS = Path(__file__).parent.parent / "benchmarks/results"


def quality_table() -> str:
    """What quantised weights cost in quality."""
    columns = "model", "weights", "perplexity", "best token as with native weights"
    rows = [[*columns]]
    for path in sorted(RESULTS.glob("weights-quality-*.json")):
        report = json.loads(path.read_text("utf-8"))
        for name, found in report["weights"].items():
            agrees = f"{found['best_token_agrees']:.1%}"
            rows.append([report["model"], f"`{name}`", f"{found['perplexity']:.3f}", agrees])
    return markdown_table(rows, left=2)


def caches_table() -> str:
    """What KV caches of fewer bits cost in quality."""
    report = json.loads((RESULTS / "caches-smollm2-135m.json").read_text("utf-8"))
    rows = [
        ["weights", "cache", "MB per 1,000 tokens", "perplexity", "best token as with float32"],
    ]
    for weights, caches in report["caches"].items():
        for name, found in caches.items():
            numbers = f"{found['slot_bytes'] / 1e3:.1f}", f"{found['perplexity']:.3f}"
            rows.append([weights, name, *numbers, f"{found['best_token_agrees']:.1%}"])
    return markdown_table(rows, left=2)


def long_texts_table() -> str:
    """Passes after long texts, by rows and by dtype of the KV cache."""
    report = json.loads((RESULTS / "long-texts.json").read_text("utf-8"))
    widths = list(report["models"][0]["passes"][0]["ms"])
    rows = [
        ["model", "cache", "tokens before", *(f"{width} rows, ms" for width in widths), "8 of 1"],
    ]
    for found in report["models"]:
        for each in found["passes"]:
            times = each["ms"]
            rows.append(
                [
                    found["model"],
                    found["cache"]["dtype"],
                    f"{each['context']:,}",
                    *(f"{taken:.1f}" for taken in times.values()),
                    f"{times['8'] / times['1']:.2f}x",
                ]
            )
    return markdown_table(rows, left=2)


def shapes_table(*widths: int) -> str:
    """Passes of models with random weights on a GPU, by engine."""
    report = json.loads((RESULTS / "gpu/shapes.json").read_text("utf-8"))
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in report["shapes"]:
        for width, context, milliseconds in row["points"]:
            found.setdefault((row["model"], context, width), {})[row["engine"]] = milliseconds
    engines = [*dict.fromkeys(engine for times in found.values() for engine in times)]
    rows = [["model", "context", "width", *(f"{engine}, ms" for engine in engines)]]
    for (model, context, width), times in sorted(found.items()):
        if width in widths:
            cells = [f"{times[name]:.2f}" if name in times else "-" for name in engines]
            rows.append([model, str(context), str(width), *cells])
    return markdown_table(rows)


def start_up_table() -> str:
    """Time and memory of whole processes that write four tokens."""
    report = json.loads((RESULTS / "start-up.json").read_text("utf-8"))
    rows = [
        ["", "file", "first start", "later starts", "peak memory, first and later"],
    ]
    for found in report["models"]:
        peaks = f"{found['first_peak_megabytes']:.0f} and {found['later_peak_megabytes']:.0f} MB"
        seconds = f"{found['first_seconds']:.1f} s", f"{found['later_seconds']:.1f} s"
        rows.append([found["model"], f"{found['file_megabytes']:.0f} MB", *seconds, peaks])
    return markdown_table(rows)


def drafts_table() -> str:
    """What drafts cost, as shares of a one-row pass."""
    report = json.loads((RESULTS / "draft-shares.json").read_text("utf-8"))
    rows = [["", "ms", "of a pass", "tokens per pass"]]
    for name, found in report["rows"].items():
        label = "a pass of one row" if name == "plain" else name
        gained = f"{found['tokens_per_pass']:.2f}"
        rows.append([label, f"{found['ms']:.2f}", f"{found['share']:.1%}", gained])
    return markdown_table(rows)


def passes_table() -> str:
    """The cost of a pass by width, beside transformers'."""
    files = {
        "smollm2-135m": "smollm2-135m, 4 bits",
        "smollm2-135m-float32": "smollm2-135m, float32",
        "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b, 4 bits",
    }
    reports = [
        json.loads((RESULTS / f"target-pass-{file}.json").read_text("utf-8")) for file in files
    ]
    rows = [["width"]]
    for name in files.values():
        rows[0] += [f"{name}, ms", "of one token", "transformers takes"]
    for points in zip(*(report["passes"]["widths"] for report in reports), strict=True):
        cells = [str(points[0]["width"])]
        for point in points:
            cells += [
                f"{point['paceline_ms']:.1f}",
                f"{point['paceline_relative']:.2f}x",
                f"{point['transformers_over_paceline']:.2f}x",
            ]
        rows.append(cells)
    return markdown_table(rows, left=0)


def plain_table() -> str:
    """Plain decoding and prefill against transformers, and memory."""
    files = {"4 bits": "smollm2-135m", "float32": "smollm2-135m-float32"}
    reports = [
        json.loads((RESULTS / f"target-pass-{file}.json").read_text("utf-8"))
        for file in files.values()
    ]
    plain = [report["plain"]["methods"]["plain"] for report in reports]
    floors = [report["passes"]["floor"] for report in reports]
    rows = [
        ["smollm2-135m, over `transformers.generate` in float32", *files],
        ["tokens/s, prompt included", *_ratios(each["total_speedup"] for each in plain)],
        ["tokens/s after the prompt", *_ratios(each["median_decode_speedup"] for each in plain)],
        [
            "texts alike",
            *(
                f"{each['identical']} of {len(report['plain']['prompts'])}"
                for each, report in zip(plain, reports, strict=True)
            ),
        ],
    ]
    for lengths in zip(*(report["prefill"]["lengths"] for report in reports), strict=True):
        ratios = (f"{each['transformers_over_paceline']:.2f}x" for each in lengths)
        rows.append([f"reading {lengths[0]['tokens']} tokens", *ratios])
    shares = (f"{floor['sides']['paceline']['share']:.0%}" for floor in floors)
    rates = (f"{floor['gb_per_s']:.0f} GB/s" for floor in floors)
    peaks = (f"{report['memory']['peak_bytes'] / 1e6:.0f} MB" for report in reports)
    rows += [
        ["share of the floor's speed at one token", *shares],
        ["the floor's rate", *rates],
        ["peak memory of the process", *peaks],
    ]
    return markdown_table(rows)


def _ratios(speedups: Iterable[dict[str, float]]) -> list[str]:
    return [f"{each['transformers']:.2f}x" for each in speedups]


def llama_table(model: str) -> str:
    """Both sides of a comparison with llama.cpp on the same file."""
    report = json.loads((RESULTS / f"llama-cpp-{model}.json").read_text("utf-8"))
    rows = [
        [
            model.removeprefix("edits-"),
            "tokens/s",
            "decoding alone",
            "first token after",
            "over",
            "decoding",
            "first token",
        ],
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
    return markdown_table(rows)


def products_table() -> str:
    """Times of products alone, by format and rows."""
    report = json.loads((RESULTS / "products.json").read_text("utf-8"))
    widths = next(iter(report["products"].values()))["milliseconds"]
    rows = [
        ["weights", "MB", "reading them", *(f"{width} rows" for width in widths)],
    ]
    for name, found in report["products"].items():
        times = (f"{each:.1f}" for each in found["milliseconds"].values())
        read = f"{found['milliseconds_to_read']:.1f}"
        rows.append([name, f"{found['bytes'] / 1e6:.0f}", read, *times])
    machine = report["machine"]
    rate = report["products"]["Q4_K"]["gigabytes_per_second"]
    return (
        f"{markdown_table(rows)}\n\n{machine['processor']}, {machine['threads']} threads, "
        f"{report['tier']}, {rate:.0f} GB/s; torch's packed matrices are four of twelve."
    )
