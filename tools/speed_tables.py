"""Tables of docs/speed.md."""

from __future__ import annotations

from collections.abc import Iterable

from bench_tables import overall_table, task_table
from papers import LARGE, RESULTS, SMALL, Blocks, listed, report

from paceline.tables import markdown_table


def quality_table() -> str:
    """What quantised weights cost in quality."""
    columns = "model", "weights", "perplexity", "best token as with native weights"
    rows = [[*columns]]
    for path in sorted(RESULTS.glob("weights-quality-*.json")):
        found = report(path.stem)
        for name, each in found["weights"].items():
            agrees = f"{each['best_token_agrees']:.1%}"
            rows.append([found["model"], f"`{name}`", f"{each['perplexity']:.3f}", agrees])
    return markdown_table(rows, left=2)


def caches_table() -> str:
    """What KV caches of fewer bits cost in quality."""
    rows = [["weights", "cache", "MB per 1,000 tokens", "perplexity", "best token as with float32"]]
    for weights, caches in report(f"caches-{SMALL}")["caches"].items():
        for name, found in caches.items():
            numbers = f"{found['slot_bytes'] / 1e3:.1f}", f"{found['perplexity']:.3f}"
            rows.append([weights, name, *numbers, f"{found['best_token_agrees']:.1%}"])
    return markdown_table(rows, left=2)


def long_texts_table() -> str:
    """Passes after long texts, by rows and by dtype of the KV cache."""
    models = report("long-texts")["models"]
    passes = [{**found, **each} for found in models for each in found["passes"]]
    columns = {
        "model": "{model}".format_map,
        "cache": "{cache[dtype]}".format_map,
        "tokens before": "{context:,}".format_map,
        **{
            f"{width} rows, ms": lambda one, width=width: f"{one['ms'][width]:.1f}"
            for width in passes[0]["ms"]
        },
        "8 of 1": lambda one: f"{one['ms']['8'] / one['ms']['1']:.2f}x",
    }
    return listed(passes, columns, left=2)


def shapes_table(*widths: int) -> str:
    """Passes of models with random weights on a GPU, by engine."""
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in report("gpu/shapes")["shapes"]:
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
    peaks = "{first_peak_megabytes:.0f} and {later_peak_megabytes:.0f} MB"
    columns = {
        "": "{model}".format_map,
        "file": "{file_megabytes:.0f} MB".format_map,
        "first start": "{first_seconds:.1f} s".format_map,
        "later starts": "{later_seconds:.1f} s".format_map,
        "peak memory, first and later": peaks.format_map,
    }
    return listed(report("start-up")["models"], columns)


def drafts_table() -> str:
    """What drafts cost, as shares of a one-row pass."""
    rows = [["", "ms", "of a pass", "tokens per pass"]]
    for name, found in report("draft-shares")["rows"].items():
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
    reports = [report(f"target-pass-{file}") for file in files]
    rows = [["width"]]
    for name in files.values():
        rows[0] += [f"{name}, ms", "of one token", "transformers takes"]
    for points in zip(*(each["passes"]["widths"] for each in reports), strict=True):
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
    reports = [report(f"target-pass-{file}") for file in files.values()]
    plain = [each["plain"]["methods"]["plain"] for each in reports]
    floors = [each["passes"]["floor"] for each in reports]
    alike = (
        f"{each['identical']} of {len(whole['plain']['prompts'])}"
        for each, whole in zip(plain, reports, strict=True)
    )
    rows = [
        ["smollm2-135m, over `transformers.generate` in float32", *files],
        ["tokens/s, prompt included", *_ratios(each["total_speedup"] for each in plain)],
        ["tokens/s after the prompt", *_ratios(each["median_decode_speedup"] for each in plain)],
        ["texts alike", *alike],
    ]
    for lengths in zip(*(each["prefill"]["lengths"] for each in reports), strict=True):
        ratios = (f"{each['transformers_over_paceline']:.2f}x" for each in lengths)
        rows.append([f"reading {lengths[0]['tokens']} tokens", *ratios])
    shares = (f"{floor['sides']['paceline']['share']:.0%}" for floor in floors)
    rates = (f"{floor['gb_per_s']:.0f} GB/s" for floor in floors)
    peaks = (f"{each['memory']['peak_bytes'] / 1e6:.0f} MB" for each in reports)
    rows += [
        ["share of the floor's speed at one token", *shares],
        ["the floor's rate", *rates],
        ["peak memory of the process", *peaks],
    ]
    return markdown_table(rows)


def _ratios(speedups: Iterable[dict[str, float]]) -> list[str]:
    return [f"{each['transformers']:.2f}x" for each in speedups]


def llama_table(name: str) -> str:
    """Both sides of a comparison with llama.cpp on the same file."""
    columns = {
        name.removeprefix("edits-"): "{name}".format_map,
        "tokens/s": "{tokens_per_second:.1f}".format_map,
        "decoding alone": "{median_decode_tokens_per_second:.1f}".format_map,
        "first token after": "{median_first_seconds:.2f} s".format_map,
        "over": "{base}".format_map,
        "decoding": "{over_base[decode_tokens_per_second]:.2f}x".format_map,
        "first token": lambda found: f"{1 / found['over_base']['first_seconds']:.2f}x",
    }
    return listed(report(f"llama-cpp-{name}")["contestants"], columns)


def products_table() -> str:
    """Times of products alone, by format and rows."""
    found = report("products")
    products, machine = found["products"], found["machine"]
    widths = next(iter(products.values()))["milliseconds"]
    rows = [["weights", "MB", "reading them", *(f"{width} rows" for width in widths)]]
    for name, each in products.items():
        times = (f"{taken:.1f}" for taken in each["milliseconds"].values())
        read = f"{each['milliseconds_to_read']:.1f}"
        rows.append([name, f"{each['bytes'] / 1e6:.0f}", read, *times])
    rate = products["Q4_K"]["gigabytes_per_second"]
    return (
        f"{markdown_table(rows)}\n\n{machine['processor']}, {machine['threads']} threads, "
        f"{found['tier']}, {rate:.0f} GB/s; torch's packed matrices are four of twelve."
    )


SPEED: Blocks = {
    "gpu-methods": lambda: overall_table("gpu/methods/run", SMALL),
    "gpu-tasks": lambda: task_table("gpu/methods/run", SMALL),
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
}
