"""Tables of `paceline bench` results, for README.md and docs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from papers import figures

from paceline.bench.metrics import Group, MethodSummary, Summary, summarise
from paceline.bench.results import read_results
from paceline.tables import markdown_table

FOLDER = Path(__file__).parent.parent / "benchmarks/results/bench"
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"
# The papers' settings. Older files, where they were the defaults, have them under the bare names.
ANPD, LLMA = "anpd:n=5,k=7,branches=1", "llma:n=1,k=15"
_BARE = {ANPD: "anpd", LLMA: "llma"}
PUBLISHED, FLOAT32 = "../planned/published", "../planned/float32"
TASKS, TASKS_FLOAT32 = "../planned/tasks", "../planned/tasks-float32"
TEN = "../planned/ten"
"""Every suite, with paceline's defaults."""
TRACES = "../planned/traces"
GPU = "../gpu/methods/run"
_SLOW = 0.98


@cache
def found(kind: str, model: str) -> tuple[dict[str, Any], Summary]:
    """The run's description and its summary."""
    header, entries = read_results(FOLDER / f"{kind}-{model}.jsonl")
    return header["run"], summarise(entries)


def overall_table(kind: str, *models: str) -> str:
    """Every method over all tasks, with the models side by side."""
    return overall({model: found(kind, model) for model in models})


def overall(runs: dict[str, tuple[dict[str, Any], Summary]]) -> str:
    """All tasks of each model's run together; the first run decides which methods are shown."""
    first = next(iter(runs.values()))
    rows = [["method"]]
    for model in runs:
        rows[0] += [f"{model}: tokens/s", "speed-up", "tokens per pass", "same text"]
    for method in first[1].overall.methods:
        row = [f"`{method}`"]
        for _, summary in runs.values():
            row += _overall_cells(summary.overall.methods.get(method))
        rows.append(row)
    return (
        f"{markdown_table(rows)}\n\n{' '.join(_basis(model, *run) for model, run in runs.items())}"
    )


def _overall_cells(method: MethodSummary | None) -> list[str]:
    if method is None:
        return ["-"] * 4
    low, high = method.interval
    speedup = f"{method.speedup:.2f}x"
    if method.method != "plain":
        speedup += f" ({low:.2f} to {high:.2f})"
    differ = len(method.differences)
    same = "all" if not differ else f"{method.texts - differ} of {method.texts}"
    same = "lossy" if method.lossy else same
    length = method.tokens / method.stats.rounds
    return [f"{method.tokens_per_second:.1f}", speedup, f"{length:.2f}", same]


def _basis(model: str, run: dict[str, Any], summary: Summary) -> str:
    machine, options = run["machine"], run["options"]
    together, on_cpu = summary.overall, machine["device"] == "cpu"
    place = f"{machine['processor']}, {machine['threads']} threads" if on_cpu else machine["device"]
    as_published = run.get("preparation", {}).get("weights") == "blocks"
    weights = "weights as published" if as_published else run.get("dtype") or "float32"
    warmth = options.get("temperature") or 0
    decoding = f"temperature {warmth:g}" if warmth else "greedy"
    return (
        f"{model}: {together.texts} texts of {len(summary.groups)} tasks, {weights}, {place}, at most "
        f"{options['max_new_tokens']} new tokens, {decoding}, each {times(run['repeats'])}, in turns; "
        f"texts that loop: {together.looping}."
    )


def times(repeats: int) -> str:
    """A number of runs in words."""
    return "once" if repeats == 1 else f"{repeats} times"


def task_table(kind: str, model: str) -> str:
    """Speed-up by task and method."""
    return by_task(found(kind, model)[1])


def by_task(summary: Summary) -> str:
    """Speed-up by task and method."""
    methods = [name for name in summary.overall.methods if name != "plain"]
    rows = [
        ["task", "texts", *(f"`{name}`" for name in methods)],
    ]
    for group in [*summary.groups, summary.overall]:
        rows.append([group.name, str(group.texts), *_speedups(group, methods)])
    calm = summary.overall_without_loops
    if calm is not None:
        rows.append(["overall, without loops", str(calm.texts), *_speedups(calm, methods)])
    return markdown_table(rows)


def texts_table(kind: str, model: str) -> str:
    """What methods do to single texts, and two bounds: free drafting, and the fastest method for
    each text, `auto` aside. Every method writes the same number of tokens per text."""
    methods = found(kind, model)[1].overall.methods
    rows = [
        [
            "method",
            "speed-up",
            "texts below 0.98x",
            "least",
            "drafting, ms a round",
            "were it free",
        ],
    ]
    plain = methods["plain"].times
    for name, each in methods.items():
        if name != "plain":
            drafting = each.stats.draft_seconds
            slow = [ratio for ratio in each.speedups.values() if ratio < _SLOW]
            free = sum(plain[key] for key in each.times) / (each.seconds - drafting)
            rows.append(
                [
                    f"`{name}`",
                    f"{each.speedup:.2f}x",
                    f"{len(slow)} of {each.texts}",
                    f"{min(each.speedups.values()):.2f}x",
                    f"{1e3 * drafting / each.stats.rounds:.2f}",
                    f"{free:.2f}x",
                ]
            )
    single = [each.times for name, each in methods.items() if name != "auto"]
    common = [key for key in plain if all(key in times for times in single)]
    fastest = sum(min(times[key] for times in single) for key in common)
    best = sum(plain[key] for key in common) / fastest
    rows.append(["the fastest of the others for each text", f"{best:.2f}x", *["-"] * 4])
    return markdown_table(rows)


def _speedups(group: Group, methods: Sequence[str]) -> list[str]:
    cells = (group.methods.get(name) for name in methods)
    return ["-" if cell is None else f"{cell.speedup:.2f}x" for cell in cells]


def trace_table() -> str:
    """Speed-ups on recorded outputs, followed by force."""
    _, summary = found(TRACES, SMALL)
    methods = [name for name in summary.overall.methods if name != "plain"]
    rows = [["recorded outputs", "texts"]]
    for name in methods:
        rows[0] += [f"`{name}`", "tokens per pass"]
    for group in [*summary.groups, summary.overall]:
        row = [group.name, str(group.texts)]
        for name in methods:
            cell = group.methods[name]
            row += [f"{cell.speedup:.2f}x", f"{cell.stats.mean_acceptance_length:.2f}"]
        rows.append(row)
    return markdown_table(rows)


def cell(kind: str, model: str, group: str, method: str) -> MethodSummary | None:
    """One method on one task; None if it was not run."""
    _, summary = found(kind, model)
    methods = next((each.methods for each in summary.groups if each.name == group), {})
    return methods.get(method) or methods.get(_BARE.get(method, method))


def _ours(ours: dict[str, tuple[str, str, str, str]]) -> str:
    """Our figures: label -> (kind, model, group, method)."""
    rows = [_HEADINGS]
    for label, place in ours.items():
        summary = cell(*place)
        if summary is not None:
            low, high = summary.interval
            rows.append(
                [
                    label,
                    f"{summary.speedup:.2f}x"
                    + (f" ({low:.2f} to {high:.2f})" if summary.texts > 1 else ""),
                    "-" if summary.decode_speedup is None else f"{summary.decode_speedup:.2f}x",
                    f"{summary.stats.mean_acceptance_length:.2f}",
                    f"{summary.stats.draft_acceptance_rate:.0%}",
                    str(summary.texts),
                ]
            )
    return markdown_table(rows)


_HEADINGS = [
    "task and model",
    "speed-up",
    "after the prompt",
    "tokens per pass",
    "hit ratio",
    "texts",
]


def anpd_table() -> str:
    """Table 1 of the ANPD paper, and our figures on the same kinds of tasks."""
    ours: dict[str, tuple[str, str, str, str]] = {}
    for task, group in (("CNN/DM", "cnndm"), ("XSum", "xsum"), ("HumanEval", "humaneval")):
        for model in (SMALL, LARGE):
            ours[f"{task}, {model}"] = ("run", model, group, ANPD)
    ours["CNN/DM and XSum, recorded text of davinci-002"] = (
        "simulate", SMALL, "news_summary_davinci002", ANPD,
    )  # fmt: skip
    ours["HumanEval and MBPP, recorded text of WizardCoder-33B"] = (
        "simulate", SMALL, "wizardcoder_humaneval_mbpp", ANPD,
    )  # fmt: skip
    return _beside("ANPD, Table 1", figures("anpd", "1"), ours)


def llma_table() -> str:
    """Tables 3 and 4 of the LLMA paper, and our figures on the same kinds of tasks."""
    ours = {
        f"retrieval-augmented, {SMALL}, its own text": ("run", SMALL, "llma_rag", LLMA),
        f"retrieval-augmented, {LARGE}, its own text": ("run", LARGE, "llma_rag", LLMA),
        "retrieval-augmented, davinci-003's text, the authors' data, k = 15": (
            "llma-data/simulate", SMALL, "llma_rag", LLMA,
        ),
        "the same, k = 18 as the paper tuned it for 7B": (
            "llma-data/simulate", SMALL, "llma_rag", "llma:n=1,k=18",
        ),
        "the same, `anpd`": ("llma-data/simulate", SMALL, "llma_rag", ANPD),
        "CNN/DM, the text that came with the authors' data": (
            "llma-data/simulate", SMALL, "llma_cnndm", LLMA,
        ),
        f"multi-turn refinement, {SMALL}, its own text": ("run", SMALL, "mteval_refine", LLMA),
    }  # fmt: skip
    return _beside("LLMA, Tables 3 and 4", figures("llma", "3 and 4"), ours)


def _beside(
    source: str,
    paper: dict[str, str],
    ours: dict[str, tuple[str, str, str, str]],
) -> str:
    theirs = [["task and model", f"{source}: speed-up"], *map(list, paper.items())]
    return f"{markdown_table(theirs)}\n\n{_ours(ours)}"


def ablation(name: str) -> str:
    """The table of an ablation over all its texts."""
    text = (FOLDER / f"ablate-{name}-{SMALL}.md").read_text(encoding="utf-8")
    table = [line for line in text.split("## ")[1].splitlines() if line.startswith("|")]
    return "\n".join(table)
