"""Medusa, Chimera and EAGLE on MT-bench and Vicuna-bench (tables 2 to 4), and all of
docs/paper-chimera.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from bench_tables import faster, overall_table, task_table, times
from head_tables import costs_table, heads_table, orders_table, variants_table
from papers import LARGE, RESULTS, SMALL, Blocks, figures

from paceline.bench.entries import Entry, LeftOut
from paceline.bench.metrics import Group, MethodSummary, summarise
from paceline.bench.results import read_results
from paceline.tables import markdown_table

METHODS = {"medusa": "Medusa", "eagle": "EAGLE", "chimera": "Chimera"}
DECODINGS, TREES = ("greedy", "typical"), ("fixed", "planned")
SUITES = {"mt_bench": "MT-bench", "vicuna_bench": "Vicuna-bench"}

THEIRS, CASES = figures("chimera", "2 and 3"), figures("chimera", "4")


def lengths_table() -> str:
    """Tables 2 and 3: tokens per pass and speed-up over plain decoding, by suite."""
    rows = [
        ["", "decoding", "trees", "texts",
         *(f"{name}: {what}" for name in METHODS.values() for what in ("tokens per pass", "speed-up")),
         "paper's Chimera: tokens per pass", "speed-up"],
    ]  # fmt: skip
    for suite, called in SUITES.items():
        for decoding, trees, found in _runs():
            group = _groups(found, "suite").get(suite)
            if group is not None:
                length, speedup = THEIRS[f"{suite} {decoding}"]
                cells = (cell for name in METHODS for cell in _overall(group, name))
                words = [called, decoding, trees, str(group.texts)]
                rows.append([*words, *cells, f"{length:.2f}", f"{speedup:.2f}x"])
    return f"{markdown_table(rows, left=3)}\n\n{_basis()}"


def cases_table(trees: str) -> str:
    """Table 4: tokens per pass and speed-up by category."""
    found = {decoding: run for decoding, each, run in _runs() if each == trees}
    groups = {decoding: _groups(run, "case") for decoding, run in found.items()}
    rows = [["", "texts"]]
    for decoding in found:
        rows[0] += [f"{name}, {decoding}" for name in METHODS.values()]
        rows[0] += [f"paper's Chimera, {decoding}"]
    for case, theirs in CASES.items():
        present = [each[case] for each in groups.values() if case in each]
        if present:
            row = [case, str(present[0].texts)]
            for decoding in found:
                group = groups[decoding].get(case)
                row += [_case(group, name) for name in METHODS]
                row.append(f"{theirs[DECODINGS.index(decoding)]:.2f}")
            rows.append(row)
    return markdown_table(rows)


def times_table() -> str:
    """Where time goes after the prompt, in milliseconds per pass."""
    rows = [
        ["", "decoding", "trees", "draft", "target", "commit", "draft over target", "reading a prompt"],
    ]  # fmt: skip
    for decoding, trees, (_, lines) in _runs():
        for name, method in summarise(lines).overall.methods.items():
            rows.append([f"`{name}`", decoding, trees, *_parts(method)])
    return markdown_table(rows, left=3)


_Found = tuple[dict[str, Any], list[Entry | LeftOut]]


@cache
def _read(decoding: str, trees: str) -> _Found:
    header, lines = read_results(RESULTS / f"heads/{decoding}-{trees}/run-{SMALL}.jsonl")
    return header["run"], lines


def _runs() -> Iterator[tuple[str, str, _Found]]:
    """All runs."""
    for decoding in DECODINGS:
        for trees in TREES:
            yield decoding, trees, _read(decoding, trees)


def _groups(found: _Found, by: str) -> dict[str, Group]:
    """The texts of a run by suite, or by category across suites."""
    lines = [
        replace(line, suite="", task=line.suite if by == "suite" else line.task,
                prompt=f"{line.suite}/{line.prompt}")
        for line in found[1]
    ]  # fmt: skip
    tasks = list(dict.fromkeys(line.task for line in lines if isinstance(line, Entry)))
    return dict(zip(tasks, summarise(lines).groups, strict=True))


def _method(group: Group | None, name: str) -> MethodSummary | None:
    """The method of that name, whatever its settings."""
    methods = {} if group is None else group.methods
    return next((each for full, each in methods.items() if full.split(":")[0] == name), None)


def _overall(group: Group, name: str) -> list[str]:
    method = _method(group, name)
    if method is None:
        return ["", ""]
    return [f"{method.stats.mean_acceptance_length:.2f}", faster(method)]


def _case(group: Group | None, name: str) -> str:
    method = _method(group, name)
    if method is None:
        return ""
    return f"{method.stats.mean_acceptance_length:.2f} ({method.speedup:.2f}x)"


def _parts(method: MethodSummary) -> list[str]:
    stats = method.stats
    passes = max(stats.rounds - method.texts, 1)  # the first of each text reads its prompt
    spent = (stats.draft_seconds, stats.target_seconds, stats.commit_seconds)
    return [
        *(f"{1000 * seconds / passes:.1f}" for seconds in spent),
        f"{stats.draft_seconds / stats.target_seconds:.1%}" if stats.target_seconds else "",
        f"{1000 * stats.prefill_seconds / method.texts:.0f}",
    ]


def _basis() -> str:
    """How the numbers were measured."""
    sentences = []
    for decoding, trees, (run, lines) in _runs():
        machine, options, group = run["machine"], run["options"], summarise(lines).overall
        methods = [each for name, each in group.methods.items() if name != "plain"]
        if all(each.lossy for each in methods):
            same = "lossy"
        else:
            same = f"{sum(len(each.differences) for each in methods)} texts differ from plain's"
        budget = f", at most {options['budget']} guesses a round" if "budget" in options else ""
        names = ", ".join(f"`{each.method}`" for each in methods)
        sentences.append(
            f"{decoding}, {trees}: {names}{budget}, temperature {options['temperature']:g}, at most "
            f"{options['max_new_tokens']} new tokens, each {times(run['repeats'])}, "
            f"{machine['processor']}, {machine['threads']} threads; {same}."
        )
    return f"{SMALL}, float32. {' '.join(sentences)}"


CHIMERA: Blocks = {
    "heads": lambda: heads_table(SMALL, LARGE),
    "speed-large": lambda: overall_table("heads/speed", LARGE),
    "tasks-large": lambda: task_table("heads/speed", LARGE),
    "orders": orders_table,
    "variants": variants_table,
    "costs": lambda: costs_table(SMALL),
    "costs-large": lambda: costs_table(LARGE),
    "lengths": lengths_table,
    "cases-fixed": lambda: cases_table("fixed"),
    "cases-planned": lambda: cases_table("planned"),
    "times": times_table,
}
