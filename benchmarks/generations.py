"""Whole generations by transformers and paceline, in turns: sections of target_pass.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from paceline.prompts import PromptRecord, demo_prompts, read_prompts
from paceline.session import Session
from pair import LOOKUP, TRANSFORMERS, Pair, Trial, rotations
from tables import new_table, number, show

Save = Callable[[dict[str, Any]], None]

WARM_UP_TOKENS = 8


def measure_plain(pair: Pair, options: argparse.Namespace, save: Save) -> None:
    """Measure greedy decoding of the demo's prompts, past the ends of the texts."""
    _compare(
        pair,
        "plain",
        (TRANSFORMERS, "plain"),
        [(record.id, _encode(pair.session, record)) for record in demo_prompts()],
        {"repeats": options.repeats, "max_new_tokens": options.max_new_tokens, "ignore_eos": True},
        save,
    )


def measure_edits(pair: Pair, options: argparse.Namespace, save: Save) -> None:
    """Measure the prompts of the user's file, to the ends of the texts."""
    new_tokens = options.edit_max_new_tokens
    room = pair.session.target.max_context or sys.maxsize
    records = read_prompts(options.edits)
    prompts = [(record.id, _encode(pair.session, record)) for record in records]
    fitting = [each for each in prompts if len(each[1]) + new_tokens <= room]
    _compare(
        pair,
        "edits",
        options.edit_methods,
        fitting[: options.edit_count],
        {"repeats": options.edit_repeats, "max_new_tokens": new_tokens, "ignore_eos": False},
        save,
    )


def _encode(session: Session, record: PromptRecord) -> list[int]:
    """The first turn of a conversation, or the text to continue."""
    if record.raw or not session.tokenizer.chat_template:
        return session.encode("\n\n".join(record.turns))
    return session.encode([{"role": "user", "content": record.turns[0]}])


def _compare(
    pair: Pair,
    section: str,
    methods: Sequence[str],
    prompts: Sequence[tuple[str, list[int]]],
    settings: dict[str, Any],
    save: Save,
) -> None:
    """Run each prompt with each method, in turns; save after each prompt.

    The first method is the baseline. If transformers' prompt lookup is among them, it is a second
    baseline.
    """
    request = (settings["max_new_tokens"], settings["ignore_eos"])
    runners = {method: pair.runner(method) for method in methods}
    for run in runners.values():
        run(prompts[0][1][:WARM_UP_TOKENS], WARM_UP_TOKENS, True)  # warms up
    records = []
    order = rotations(methods)
    for name, ids in prompts:
        trials: dict[str, list[Trial]] = {method: [] for method in methods}
        for _ in range(settings["repeats"]):
            for method in next(order):
                trials[method].append(runners[method](ids, *request))
        records.append(_record(pair, name, ids, trials))
        save({section: settings | _summary(records, methods) | {"prompts": records}})


def _record(
    pair: Pair, name: str, ids: Sequence[int], trials: dict[str, list[Trial]]
) -> dict[str, Any]:
    """One prompt: each method's medians, speed-ups, and where its text leaves the baseline's."""
    expected = next(iter(trials.values()))[0].tokens
    methods = {
        method: {
            "tokens": len(runs[0].tokens),
            "seconds": median(run.seconds for run in runs),
            "first_seconds": median(run.first_seconds for run in runs),
            "tokens_per_second": median(run.tokens_per_second for run in runs),
            "decode_tokens_per_second": _median(run.decode_tokens_per_second for run in runs),
            "rounds": runs[0].rounds,
            "acceptance_length": runs[0].acceptance_length,
            "difference": pair.first_difference(ids, expected, runs[0].tokens),
            "same_every_time": all(run.tokens == runs[0].tokens for run in runs),
        }
        for method, runs in trials.items()
    }
    speeds = {method: found["tokens_per_second"] for method, found in methods.items()}
    decoding = {method: found["decode_tokens_per_second"] for method, found in methods.items()}
    for method, found in methods.items():
        found["speedup"] = _over(speeds, method)
        found["decode_speedup"] = _over(decoding, method)
    return {"prompt": name, "prompt_tokens": len(ids), "methods": methods}


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _over(speeds: Mapping[str, float | None], method: str) -> dict[str, float]:
    """The speed-up of a method over each baseline."""
    return {
        base: speeds[method] / speeds[base]
        for base in _bases(list(speeds))
        if speeds[method] and speeds[base]
    }


def _bases(methods: Sequence[str]) -> list[str]:
    return [method for method in methods if method in (methods[0], LOOKUP)]


def _summary(records: list[dict[str, Any]], methods: Sequence[str]) -> dict[str, Any]:
    """Over all prompts: total tokens per total seconds, and medians of the speed-ups."""
    result: dict[str, dict[str, Any]] = {}
    for method in methods:
        found = [record["methods"][method] for record in records]
        tokens, rounds = (sum(each[key] for each in found) for key in ("tokens", "rounds"))
        result[method] = {
            "tokens": tokens,
            "seconds": sum(each["seconds"] for each in found),
            "tokens_per_second": tokens / sum(each["seconds"] for each in found),
            "acceptance_length": tokens / rounds,
            "identical": sum(each["difference"] is None for each in found),
            "median_speedup": _medians(found, "speedup"),
            "median_decode_speedup": _medians(found, "decode_speedup"),
        }
    totals = {method: each["tokens_per_second"] for method, each in result.items()}
    for method, each in result.items():
        each["total_speedup"] = _over(totals, method)
    return {"methods": result}


def _medians(found: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    bases = dict.fromkeys(base for each in found for base in each[key])
    return {base: median(each[key][base] for each in found if base in each[key]) for base in bases}


def show_generations(section: dict[str, Any]) -> None:
    """Print one table by prompt and one over all prompts."""
    bases = _bases(list(section["methods"]))
    columns = [f"over {base}" for base in bases]
    title = f"at most {section['max_new_tokens']} new tokens, medians of {section['repeats']}"
    each = new_table(
        title, "prompt", "read", "method", "new", "tokens/s", "decoding", *columns, "a pass", "same"
    )
    for record in section["prompts"]:
        for method, found in record["methods"].items():
            parted = found["difference"]
            each.add_row(
                record["prompt"],
                str(record["prompt_tokens"]),
                method,
                str(found["tokens"]),
                f"{found['tokens_per_second']:.1f}",
                number(found["decode_tokens_per_second"]),
                *(f"{found['speedup'][base]:.2f}x" for base in bases),
                f"{found['acceptance_length']:.2f}",
                "yes" if parted is None else f"to {parted['position']}",
            )
    show(each)
    show(_totals(section, bases))


def _totals(section: dict[str, Any], bases: Sequence[str]) -> Table:
    parts = [f"{kind} over {base}" for base in bases for kind in ("total", "median", "decoding")]
    total = new_table("all prompts", "method", "tokens/s", *parts, "a pass", "same")
    for method, found in section["methods"].items():
        speedups = [
            found[key].get(base)
            for base in bases
            for key in ("total_speedup", "median_speedup", "median_decode_speedup")
        ]
        total.add_row(
            method,
            f"{found['tokens_per_second']:.1f}",
            *(number(value, "x") for value in speedups),
            f"{found['acceptance_length']:.2f}",
            f"{found['identical']}/{len(section['prompts'])}",
        )
    return total
