"""Tables of docs/paper-chimera.md: Medusa, Chimera and EAGLE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

from bench_tables import LENGTH, SPEEDUP, sure, times
from papers import SMALL, crossed, entries, figures, found, report, trained

from paceline.bench.entries import Entry
from paceline.bench.metrics import Group, MethodSummary, summarise
from paceline.tables import markdown_table

_OWN = "Chimera, after its own guesses"
METHODS = {"medusa": "Medusa", "eagle": "EAGLE", "chimera": "Chimera"}
DECODINGS = ("greedy", "typical")
RUNS = {
    run: f"heads/{'-'.join(run)}/run-{SMALL}" for run in product(DECODINGS, ("fixed", "planned"))
}
"""Decoding and trees -> result file."""
SUITES = {"mt_bench": "MT-bench", "vicuna_bench": "Vicuna-bench"}


def heads(*models: str) -> str:
    """Table 5: shipped heads and EAGLE's steps, beside the paper's heads, of which Chimera's were
    judged after their own guesses."""
    columns = [f"{model}: {top}" for model in (*models, "paper") for top in ("top-1", "top-5")]
    paper, own = figures("chimera", "5"), report("heads/after-own-guesses")
    judged = {name: _tests(trained(name.lower())) for name in ("Medusa", "EAGLE", "Chimera")}
    judged[_OWN] = _tests(own, "evaluation_after_own_guesses")
    rows = [["head", "", *columns]]
    for head, (name, tests) in product(range(4), judged.items()):
        tops = [tests.get(model, {}).get(top, ()) for model in models for top in ("top1", "top5")]
        ours = [f"{shares[head]:.1%}" if head < len(shares) else "" for shares in tops]
        of = {_OWN: "Chimera", "Medusa": "Medusa"}.get(name)
        theirs = [f"{paper[of][head][place]:.0%}" if of else "" for place in (0, 4)]
        if any(ours):
            rows.append([str(head), name, *ours, *theirs])
    return markdown_table(rows, left=2)


def ablations(*names: str) -> Iterator[dict[str, Any]]:
    """Table 6 and figure 8: the median of all seeds, with the least and the most."""
    for name in names:
        runs = report(f"heads/ablations-{SMALL}")["runs"][name]
        chain = median(run["evaluation"]["tokens_per_pass"] for run in runs)
        found = {"name": name, "bytes": runs[0]["bytes"], "chain": chain}
        for kind, place in {"": "evaluation", "own ": "evaluation_after_own_guesses"}.items():
            for top in ("top1", "top5"):
                shares = zip(*(run[place][top] for run in runs if place in run))
                found[kind + top] = [
                    f"{median(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in shares
                ] or [""] * 4
        yield {**found, "paper": figures("chimera", "6").get(name, [""] * 4)}


def _tests(records: dict[str, Any], name: str = "evaluation") -> dict[str, Any]:
    return {model: record[name] for model, record in records.items()}


def _groups(run: str, by: str) -> dict[str, Group]:
    """The texts of a run by "suite", or by "task", a category, across suites."""
    lines = [
        replace(one, suite="", task=getattr(one, by), prompt=f"{one.suite}/{one.prompt}")
        for one in entries(run)[1]
    ]
    names = dict.fromkeys(line.task for line in lines if isinstance(line, Entry))
    return dict(zip(names, summarise(lines).groups, strict=True))


def _method(group: Group, name: str) -> MethodSummary:
    """The method of that name, whatever its settings."""
    return next(each for full, each in group.methods.items() if full.partition(":")[0] == name)


def suites() -> str:
    """Tables 2 and 3: tokens per pass and speed-up over plain decoding, by suite."""
    columns = [f"{name}: {what}" for name in METHODS.values() for what in ("tokens per pass", "speed-up")]  # fmt: skip
    rows = [["", "decoding", "trees", "texts", *columns,
             "paper's Chimera: tokens per pass", "speed-up"]]  # fmt: skip
    for suite, ((decoding, trees), run) in product(SUITES, RUNS.items()):
        group = _groups(run, "suite")[suite]
        methods = [_method(group, name) for name in METHODS]
        cells = [cell for each in methods for cell in (LENGTH.format(each), sure(each))]
        length, speedup = figures("chimera", "2 and 3")[f"{suite} {decoding}"]
        paper = f"{length:.2f}", f"{speedup:.2f}x"
        rows.append([SUITES[suite], decoding, trees, str(group.texts), *cells, *paper])
    return f"{markdown_table(rows, left=3)}\n\n{_basis()}"


def cases(trees: str) -> str:
    """Table 4: tokens per pass and speed-up by category."""
    groups = {decoding: _groups(RUNS[decoding, trees], "task") for decoding in DECODINGS}
    cells = {}
    for case, paper in figures("chimera", "4").items():
        cells[case, "texts"] = str(groups["greedy"][case].texts)
        for decoding, length in zip(DECODINGS, paper):
            for method, name in METHODS.items():
                own = _method(groups[decoding][case], method)
                cells[case, f"{name}, {decoding}"] = f"{LENGTH} ({SPEEDUP})".format(own)
            cells[case, f"paper's Chimera, {decoding}"] = f"{length:.2f}"
    return crossed("", cells)


def times_by_part() -> Iterator[dict[str, Any]]:
    """Where time goes after the prompt, per pass."""
    for (decoding, trees), run in RUNS.items():
        for name, method in found(run)[1].overall.methods.items():
            stats = method.stats
            passes = stats.rounds - method.texts  # the first of each text reads its prompt
            yield {
                "name": name,
                "decoding": decoding,
                "trees": trees,
                "draft": stats.draft_seconds / passes,
                "target": stats.target_seconds / passes,
                "commit": stats.commit_seconds / passes,
                "share": stats.draft_seconds / stats.target_seconds,
                "prefill": stats.prefill_seconds / method.texts,
            }


def _basis() -> str:
    """How the numbers were measured."""
    sentences = [f"{SMALL}, float32."]
    for kind, file in RUNS.items():
        run, summary = found(file)
        machine, options = run["machine"], run["options"]
        methods = [each for name, each in summary.overall.methods.items() if name != "plain"]
        differ = sum(len(each.differences) for each in methods)
        same = "lossy" if methods[0].lossy else f"{differ} texts differ from plain's"
        budget = f", at most {options['budget']} guesses a round" if "budget" in options else ""
        names = ", ".join(f"`{each.method}`" for each in methods)
        sentences.append(
            f"{', '.join(kind)}: {names}{budget}, temperature {options['temperature']:g}, at most "
            f"{options['max_new_tokens']} new tokens, each {times(run['repeats'])}, "
            f"{machine['processor']}, {machine['threads']} threads; {same}."
        )
    return " ".join(sentences)
