"""Tables of `paceline bench` results, for README.md and docs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from papers import LARGE, RESULTS, SMALL, Blocks, figures, listed

from paceline.bench.metrics import MethodSummary, Summary, summarise
from paceline.bench.results import read_results
from paceline.tables import markdown_table

# The papers' settings. Older files, where they were the defaults, have them under the bare names.
ANPD, LLMA = "anpd:n=5,k=7,branches=1", "llma:n=1,k=15"
_BARE = {ANPD: "anpd", LLMA: "llma"}
_SLOW = 0.98


@cache
def found(kind: str, model: str) -> tuple[dict[str, Any], Summary]:
    """The run's description and its summary."""
    header, entries = read_results(RESULTS / f"{kind}-{model}.jsonl")
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
    speedup = faster(method, interval=method.method != "plain")
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


def faster(method: MethodSummary, interval: bool = True) -> str:
    """The speed-up over plain decoding."""
    low, high = method.interval
    return f"{method.speedup:.2f}x" + (f" ({low:.2f} to {high:.2f})" if interval else "")


def times(repeats: int) -> str:
    """A number of runs in words."""
    return "once" if repeats == 1 else f"{repeats} times"


def task_table(kind: str, model: str) -> str:
    """Speed-up by task and method."""
    _, summary = found(kind, model)
    groups = [*summary.groups, summary.overall]
    if (calm := summary.overall_without_loops) is not None:
        groups.append(replace(calm, name="overall, without loops"))
    methods = [name for name in summary.overall.methods if name != "plain"]
    rows = [["task", "texts", *(f"`{name}`" for name in methods)]]
    for group in groups:
        cells = (group.methods.get(name) for name in methods)
        speedups = ("-" if cell is None else faster(cell, interval=False) for cell in cells)
        rows.append([group.name, str(group.texts), *speedups])
    return markdown_table(rows)


def texts_table(kind: str, model: str) -> str:
    """What methods do to single texts, and two bounds: free drafting, and the fastest method for
    each text, `auto` aside. Every method writes the same number of tokens per text."""
    methods = found(kind, model)[1].overall.methods
    plain = methods["plain"].times
    single = [each.times for name, each in methods.items() if name != "auto"]
    common = [key for key in plain if all(key in times for times in single)]
    fastest = sum(min(times[key] for times in single) for key in common)
    best = sum(plain[key] for key in common) / fastest

    def below(m: MethodSummary) -> str:
        return f"{sum(ratio < _SLOW for ratio in m.speedups.values())} of {m.texts}"

    def free(m: MethodSummary) -> str:
        without = m.seconds - m.stats.draft_seconds
        return f"{sum(plain[key] for key in m.times) / without:.2f}x"

    return listed(
        [each for name, each in methods.items() if name != "plain"],
        {
            "method": lambda m: f"`{m.method}`",
            "speed-up": lambda m: faster(m, interval=False),
            "texts below 0.98x": below,
            "least": lambda m: f"{min(m.speedups.values()):.2f}x",
            "drafting, ms a round": lambda m: f"{1e3 * m.stats.draft_seconds / m.stats.rounds:.2f}",
            "were it free": free,
        },
        more=[["the fastest of the others for each text", f"{best:.2f}x", *["-"] * 4]],
    )


def trace_table() -> str:
    """Speed-ups on recorded outputs, followed by force."""
    _, summary = found("planned/traces", SMALL)
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


Place = tuple[str, str, str, str]
"""Kind, model, group and method of a figure of ours."""


def _at(place: Place) -> MethodSummary | None:
    """One method on one task; None if it was not run."""
    kind, model, group, method = place
    _, summary = found(kind, model)
    methods = next((each.methods for each in summary.groups if each.name == group), {})
    return methods.get(method) or methods.get(_BARE.get(method, method))


def anpd_table() -> str:
    """Table 1 of the ANPD paper, and our figures on the same kinds of tasks."""
    ours: dict[str, Place] = {}
    for task, group in (("CNN/DM", "cnndm"), ("XSum", "xsum"), ("HumanEval", "humaneval")):
        for model in (SMALL, LARGE):
            ours[f"{task}, {model}"] = ("bench/run", model, group, ANPD)
    ours["CNN/DM and XSum, recorded text of davinci-002"] = (
        "bench/simulate", SMALL, "news_summary_davinci002", ANPD,
    )  # fmt: skip
    ours["HumanEval and MBPP, recorded text of WizardCoder-33B"] = (
        "bench/simulate", SMALL, "wizardcoder_humaneval_mbpp", ANPD,
    )  # fmt: skip
    return _beside("ANPD, Table 1", figures("anpd", "1"), ours)


def llma_table() -> str:
    """Tables 3 and 4 of the LLMA paper, and our figures on the same kinds of tasks."""
    ours = {
        f"retrieval-augmented, {SMALL}, its own text": ("bench/run", SMALL, "llma_rag", LLMA),
        f"retrieval-augmented, {LARGE}, its own text": ("bench/run", LARGE, "llma_rag", LLMA),
        "retrieval-augmented, davinci-003's text, the authors' data, k = 15": (
            "bench/llma-data/simulate", SMALL, "llma_rag", LLMA,
        ),
        "the same, k = 18 as the paper tuned it for 7B": (
            "bench/llma-data/simulate", SMALL, "llma_rag", "llma:n=1,k=18",
        ),
        "the same, `anpd`": ("bench/llma-data/simulate", SMALL, "llma_rag", ANPD),
        "CNN/DM, the text that came with the authors' data": (
            "bench/llma-data/simulate", SMALL, "llma_cnndm", LLMA,
        ),
        f"multi-turn refinement, {SMALL}, its own text": (
            "bench/run", SMALL, "mteval_refine", LLMA,
        ),
    }  # fmt: skip
    return _beside("LLMA, Tables 3 and 4", figures("llma", "3 and 4"), ours)


def _beside(source: str, paper: dict[str, str], ours: dict[str, Place]) -> str:
    theirs = markdown_table([["task and model", f"{source}: speed-up"], *paper.items()])
    known = {label: _at(place) for label, place in ours.items()}

    def later(m: MethodSummary) -> str:
        return "-" if m.decode_speedup is None else f"{m.decode_speedup:.2f}x"

    mine = listed(
        [replace(each, method=label) for label, each in known.items() if each is not None],
        {
            "task and model": lambda m: m.method,
            "speed-up": lambda m: faster(m, interval=m.prompts > 1),
            "after the prompt": later,
            "tokens per pass": lambda m: f"{m.stats.mean_acceptance_length:.2f}",
            "hit ratio": lambda m: f"{m.stats.draft_acceptance_rate:.0%}",
            "texts": lambda m: str(m.texts),
        },
    )
    return f"{theirs}\n\n{mine}"


def ablation(name: str) -> str:
    """The table of an ablation over all its texts."""
    text = (RESULTS / f"bench/ablate-{name}-{SMALL}.md").read_text(encoding="utf-8")
    table = [line for line in text.split("## ")[1].splitlines() if line.startswith("|")]
    return "\n".join(table)


README: Blocks = {"bench": lambda: overall_table("planned/ten", SMALL, LARGE)}
BENCH: Blocks = {
    "overall-float32": lambda: overall_table("planned/float32", SMALL),
    "overall-twelve": lambda: overall_table("planned/published", SMALL),
    "tasks-ten": lambda: task_table("planned/ten", SMALL),
    "tasks-ten-large": lambda: task_table("planned/ten", LARGE),
    "texts-ten": lambda: texts_table("planned/ten", SMALL),
    "texts-ten-large": lambda: texts_table("planned/ten", LARGE),
    "overall": lambda: overall_table("planned/tasks", SMALL, LARGE),
    "overall-tasks-float32": lambda: overall_table("planned/tasks-float32", SMALL),
    "traces": trace_table,
}
PAPER_ANPD: Blocks = {
    "anpd": anpd_table,
    "anpd-k": lambda: ablation("anpd-k"),
    "anpd-n": lambda: ablation("anpd-n"),
}
PAPER_LLMA: Blocks = {"llma": llma_table, "llma-ablation": lambda: ablation("llma")}
