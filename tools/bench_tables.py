"""Tables of `paceline bench` results, for README.md and docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import papers
from papers import LARGE, SMALL, Columns, crossed, figures, found, listed, made

from paceline.bench.metrics import MethodSummary
from paceline.tables import markdown_table

# The papers' settings. Older files, where they were the defaults, have them under the bare names.
ANPD, LLMA = "anpd:n=5,k=7,branches=1", "llma:n=1,k=15"
_BARE = {ANPD: "anpd", LLMA: "llma"}
_SLOW = 0.98

SPEEDUP, LENGTH = "{0.speedup:.2f}x", "{0.stats.mean_acceptance_length:.2f}"
"""Cells of a method."""


def sure(method: MethodSummary) -> str:
    """The speed-up over plain decoding, with its interval."""
    low, high = method.interval
    return f"{method.speedup:.2f}x ({low:.2f} to {high:.2f})"


def _same(method: MethodSummary) -> str:
    differ = len(method.differences)
    same = "all" if not differ else f"{method.texts - differ} of {method.texts}"
    return "lossy" if method.lossy else same


OVERALL: Columns = {
    "tokens/s": "{0.tokens_per_second:.1f}",
    "speed-up": lambda m: SPEEDUP.format(m) if m.method == "plain" else sure(m),
    "tokens per pass": lambda m: f"{m.tokens / m.stats.rounds:.2f}",
    "same text": _same,
}


def overall(kind: str, *models: str) -> str:
    """Every method over all tasks, with the models side by side."""
    return overall_of({model: found(f"{kind}-{model}") for model in models})


def overall_of(runs: Mapping[str, papers.Run]) -> str:
    """The same for runs by model; the first one decides which methods are shown."""
    shown = next(iter(runs.values()))[1].overall.methods
    cells = {}
    for model, (_, summary) in runs.items():
        for name, (what, cell) in product(shown, OVERALL.items()):
            heading = f"{model}: {what}" if what == "tokens/s" else what
            one = summary.overall.methods.get(name)
            cells[f"`{name}`", (model, heading)] = "-" if one is None else made(cell, one)
    basis = " ".join(_basis(model, run) for model, run in runs.items())
    return f"{crossed('method', cells)}\n\n{basis}"


def _basis(model: str, found: papers.Run) -> str:
    run, summary = found
    machine, options, together = run["machine"], run["options"], summary.overall
    on_cpu = machine["device"] == "cpu"
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


def tasks(kind: str, model: str, corner: str = "task", more: Columns | None = None) -> str:
    """Speed-ups by task and method, with `more` columns of each method."""
    _, summary = found(f"{kind}-{model}")
    groups = [*summary.groups, summary.overall]
    if (calm := summary.overall_without_loops) is not None and more is None:
        groups.append(replace(calm, name="overall, without loops"))
    cells: dict[tuple[str, papers.Heading], str] = {}
    for group in groups:
        cells[group.name, "texts"] = str(group.texts)
        for method in summary.overall.methods:
            columns = {} if method == "plain" else {f"`{method}`": SPEEDUP, **(more or {})}
            one = group.methods.get(method)
            for heading, cell in columns.items():
                cells[group.name, (method, heading)] = "-" if one is None else made(cell, one)
    return crossed(corner, cells)


def traces(kind: str, model: str) -> str:
    """Speed-ups on recorded outputs, followed by force."""
    return tasks(kind, model, "recorded outputs", {"tokens per pass": LENGTH})


def texts(kind: str, model: str) -> str:
    """What methods do to single texts, and two bounds: free drafting, and the fastest method for
    each text, `auto` aside. Every method writes the same number of tokens per text."""
    group = found(f"{kind}-{model}")[1].overall
    plain = group.methods["plain"].times
    single = [each.times for name, each in group.methods.items() if name != "auto"]
    common = [key for key in plain if all(key in times for times in single)]
    fastest = sum(min(times[key] for times in single) for key in common)
    best = sum(plain[key] for key in common) / fastest

    def below(m: MethodSummary) -> str:
        return f"{sum(ratio < _SLOW for ratio in m.speedups.values())} of {m.texts}"

    def free(m: MethodSummary) -> str:
        without = m.seconds - m.stats.draft_seconds
        return f"{sum(plain[key] for key in m.times) / without:.2f}x"

    return listed(
        [each for name, each in group.methods.items() if name != "plain"],
        {
            "method": "`{0.method}`",
            "speed-up": SPEEDUP,
            "texts below 0.98x": below,
            "least": lambda m: f"{min(m.speedups.values()):.2f}x",
            "drafting, ms a round": lambda m: f"{1e3 * m.stats.draft_seconds / m.stats.rounds:.2f}",
            "were it free": free,
        },
        more=[["the fastest of the others for each text", f"{best:.2f}x", *["-"] * 4]],
    )


Place = tuple[str, str, str, str]
"""Label, run, group and method of a figure of ours."""
_RUN, _FORCED, _DATA = f"bench/run-{SMALL}", f"bench/simulate-{SMALL}", f"bench/llma-data/simulate-{SMALL}"  # fmt: skip
_OF_ANPD: tuple[Place, ...] = (
    *(
        (f"{task}, {model}", f"bench/run-{model}", group, ANPD)
        for task, group in (("CNN/DM", "cnndm"), ("XSum", "xsum"), ("HumanEval", "humaneval"))
        for model in (SMALL, LARGE)
    ),
    ("CNN/DM and XSum, recorded text of davinci-002", _FORCED, "news_summary_davinci002", ANPD),
    ("HumanEval and MBPP, recorded text of WizardCoder-33B", _FORCED, "wizardcoder_humaneval_mbpp", ANPD),
)  # fmt: skip
_OF_LLMA: tuple[Place, ...] = (
    (f"retrieval-augmented, {SMALL}, its own text", _RUN, "llma_rag", LLMA),
    (f"retrieval-augmented, {LARGE}, its own text", f"bench/run-{LARGE}", "llma_rag", LLMA),
    ("retrieval-augmented, davinci-003's text, the authors' data, k = 15", _DATA, "llma_rag", LLMA),
    ("the same, k = 18 as the paper tuned it for 7B", _DATA, "llma_rag", "llma:n=1,k=18"),
    ("the same, `anpd`", _DATA, "llma_rag", ANPD),
    ("CNN/DM, the text that came with the authors' data", _DATA, "llma_cnndm", LLMA),
    (f"multi-turn refinement, {SMALL}, its own text", _RUN, "mteval_refine", LLMA),
)


def beside_anpd() -> str:
    """The paper's table, and our figures on the same kinds of tasks."""
    return _beside("ANPD, Table 1", figures("anpd", "1"), _OF_ANPD)


def beside_llma() -> str:
    """The same for LLMA."""
    return _beside("LLMA, Tables 3 and 4", figures("llma", "3 and 4"), _OF_LLMA)


def _beside(source: str, paper: Mapping[str, str], places: tuple[Place, ...]) -> str:
    """A paper's table, and our figures on the same kinds of tasks."""
    theirs = markdown_table([["task and model", f"{source}: speed-up"], *paper.items()])
    columns: Columns = {
        "task and model": "{0.method}",
        "speed-up": lambda m: sure(m) if m.prompts > 1 else SPEEDUP.format(m),
        "after the prompt": "{0.decode_speedup:.2f}x",
        "tokens per pass": LENGTH,
        "hit ratio": "{0.stats.draft_acceptance_rate:.0%}",
        "texts": "{0.texts}",
    }
    return f"{theirs}\n\n{listed(_at(places), columns)}"


def _at(places: tuple[Place, ...]) -> Iterator[MethodSummary]:
    for label, run, group, method in places:
        methods = next(each.methods for each in found(run)[1].groups if each.name == group)
        yield replace(methods.get(method) or methods[_BARE[method]], method=label)


def ablation(name: str) -> str:
    """An ablation over all its texts."""
    text = (papers.RESULTS / f"bench/ablate-{name}-{SMALL}.md").read_text(encoding="utf-8")
    return text.split("## ")[1].partition("\n\n")[2].strip()
