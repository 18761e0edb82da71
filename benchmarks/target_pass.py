"""Measure the cost of a pass of the model, by paceline and by transformers.

    python benchmarks/target_pass.py --model smollm2-135m --json target_pass.json
    python benchmarks/target_pass.py --edits prompts.jsonl --sections edits --json edits.json

Both run in one process and take turns, by default on the CPU in float32. Sections:

- memory: peak of a process that loads the model through paceline and generates a little
- plain: greedy decoding, tokens per second, and whether the texts are the same
- passes: a pass by width, with 300 tokens in the cache or other --contexts, and what memory
  bandwidth allows
- prefill: reading a prompt
- edits: prompts of a file, with prompt lookup for transformers and a drafter for paceline

The result file is written after each section, so an interrupted run keeps its measurements.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch

from generations import Save, measure_edits, measure_plain, show_generations
from paceline.machine import describe_machine, describe_versions
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.targets.engines import DEFAULT_ENGINE, ENGINES
from paceline.targets.prepare import AUTO, WEIGHTS
from pair import Pair, rotations
from pass_floor import beside_reading, show_floor
from placing import add_placement, placement
from process_memory import compared, generate_and_tell, resident_of_child, show_memory
from tables import new_table, show, shown_command

SECTIONS = ("memory", "plain", "passes", "prefill", "edits")
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 300
PREFILLS = (512, 1024)

Measure = Callable[[Pair, argparse.Namespace, Save], None]
Show = Callable[[dict[str, Any]], None]


def main() -> None:
    options = _arguments()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.memory_child:
        generate_and_tell(options)
        return
    report: dict[str, Any] = {}

    def save(section: dict[str, Any]) -> None:
        report.update(section)
        if options.json is not None:
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n")

    # The child runs before this process loads models, which may leave it no memory.
    memory = resident_of_child(options) if "memory" in options.sections else None
    pair = Pair.load(options.model, options.weights, options.engine, **placement(options))
    save(_circumstances(pair, options))
    if memory is not None:
        save({"memory": compared(memory, _parameter_bytes(pair))})
        show_memory(report["memory"])
    for name, measure, show_section in _sections(options):
        measure(pair, options, save)
        show_section(report[name])


def _sections(options: argparse.Namespace) -> Iterator[tuple[str, Measure, Show]]:
    """Requested sections after memory: name, function that measures and saves, one that prints."""
    sections: dict[str, tuple[Measure, Show]] = {
        "plain": (measure_plain, show_generations),
        "passes": (_passes, _show_passes),
        "prefill": (_prefill, _show_prefill),
        "edits": (measure_edits, show_generations),
    }
    for name, (measure, show_section) in sections.items():
        if name in options.sections and (name != "edits" or options.edits is not None):
            yield name, measure, show_section


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="alias, folder, GGUF file, hub id")
    add_placement(parser, "cpu", "float32")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, choices=ENGINES, help="of paceline")
    parser.add_argument("--weights", default=AUTO, choices=WEIGHTS)
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--repeats", type=int, default=7, help="runs per median")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="rows of passes")
    parser.add_argument("--contexts", type=int, nargs="+", default=[CONTEXT], help="before them")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of plain decoding")
    parser.add_argument("--edits", type=Path, help='JSONL records with "turns" or "prompt"')
    parser.add_argument("--edit-count", type=int, default=10, help="prompts to take of them")
    parser.add_argument("--edit-repeats", type=int, default=1)
    parser.add_argument("--edit-max-new-tokens", type=int, default=256)
    parser.add_argument(
        "--edit-methods",
        type=lambda text: text.split(";"),
        default="transformers;transformers-lookup;plain;anpd",
        help="by semicolons; the others are measured by the first, and by the lookup",
    )
    parser.add_argument("--sections", default=",".join(SECTIONS), help="names, by commas")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sections = options.sections.split(",")
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are: {', '.join(SECTIONS)}")
    if options.json is not None:
        options.json.open("a").close()  # fail now, not after an hour
    return options


def _circumstances(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    session, target = pair.session, pair.session.target.describe()
    return {
        "command": shown_command(),
        "machine": describe_machine(target),
        "versions": describe_versions(),
        "python": platform.python_version(),
        "model": {"name": Path(options.model).name, "fingerprint": session.fingerprint},
        "parameter_bytes": _parameter_bytes(pair),
        "weights": target.weights,
        "dtype": target.dtype,
        "engine": options.engine,
        "preparation": target.report["preparation"],
        "budget": session.budget,
        "repeats": options.repeats,
    }


def _parameter_bytes(pair: Pair) -> int:
    """Bytes of the weights as loaded, shared ones counted once."""
    return sum(weights.nbytes for weights in pair.native.parameters())


def _passes(pair: Pair, options: argparse.Namespace, save: Save) -> None:
    first, *others = options.contexts
    curves = _curves(pair, options, first)
    section = {
        "context": first,
        "repeats": options.repeats,
        "widths": _rows(curves, options.widths),
        "floor": beside_reading(pair, curves, CONTEXT, options.repeats),
        "others": [],
    }
    save({"passes": section})
    for context in others:
        rows = _rows(_curves(pair, options, context), options.widths)
        section["others"].append({"context": context, "widths": rows})
        save({"passes": section})
    # Only now are all passes captured.
    save({"graphs": pair.session.target.describe().report.get("graphs")})


def _rows(curves: dict[str, CostCurve], widths: Sequence[int]) -> list[dict[str, float]]:
    own, other = curves["paceline"], curves["transformers"]
    return [
        {
            "width": width,
            "paceline_ms": own.cost(width),
            "transformers_ms": other.cost(width),
            "paceline_relative": own.relative(width),
            "transformers_relative": other.relative(width),
            "transformers_over_paceline": other.cost(width) / own.cost(width),
        }
        for width in widths
    ]


def _curves(pair: Pair, options: argparse.Namespace, context: int) -> dict[str, CostCurve]:
    """The cost of a pass by width; widths come in random order, sides in turns."""
    random, size, widths = Random(0), pair.session.target.vocab_size, options.widths
    text = [random.randrange(size) for _ in range(context + 1)]
    seconds: dict[tuple[str, int], list[float]] = {}
    with pair.passes(text) as timed:
        sides = dict(zip(("transformers", "paceline"), timed))
        order = rotations(list(sides))
        for repeat in range(options.repeats + 1):
            for width in random.sample(widths, len(widths)):
                tokens = [random.randrange(size) for _ in range(width - 1)]
                for side in next(order):
                    taken = sides[side](tokens)
                    if repeat:  # the first round warms up
                        seconds.setdefault((side, width), []).append(taken)
    return {
        side: CostCurve(
            tuple(CostPoint(w, context, 1000 * median(seconds[side, w])) for w in widths)
        )
        for side in sides
    }


def _show_passes(section: dict[str, Any]) -> None:
    sides = ("paceline", "transformers")
    columns = [f"{side} {what}" for side in sides for what in ("ms", "of one token")]
    for found in (section, *section["others"]):
        title = f"a pass after {found['context']} tokens, medians of {section['repeats']}"
        table = new_table(title, "width", *columns, "transformers/paceline")
        for row in found["widths"]:
            times = [
                text
                for side in sides
                for text in (f"{row[f'{side}_ms']:.2f}", f"{row[f'{side}_relative']:.2f}x")
            ]
            table.add_row(str(row["width"]), *times, f"{row['transformers_over_paceline']:.2f}x")
        show(table)
    show_floor(section["floor"])


def _prefill(pair: Pair, options: argparse.Namespace, save: Save) -> None:
    random, target = Random(1), pair.session.target
    sides = {"transformers": pair.prefill_transformers, "paceline": pair.prefill_paceline}
    order, rows = rotations(list(sides)), []
    for length in PREFILLS:
        if target.max_context is not None and length > target.max_context:
            continue
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for repeat in range(options.repeats + 1):
            text = [random.randrange(target.vocab_size) for _ in range(length)]
            for side in next(order):
                taken = sides[side](text)
                if repeat:  # the first round warms up
                    seconds[side].append(taken)
        own, other = (median(seconds[side]) for side in ("paceline", "transformers"))
        rows.append(
            {
                "tokens": length,
                "paceline_seconds": own,
                "transformers_seconds": other,
                "transformers_over_paceline": other / own,
            }
        )
    save({"prefill": {"repeats": options.repeats, "lengths": rows}})


def _show_prefill(section: dict[str, Any]) -> None:
    title = f"reading a prompt, medians of {section['repeats']}"
    table = new_table(title, "tokens", "paceline s", "transformers s", "transformers/paceline")
    for row in section["lengths"]:
        table.add_row(
            str(row["tokens"]),
            f"{row['paceline_seconds']:.3f}",
            f"{row['transformers_seconds']:.3f}",
            f"{row['transformers_over_paceline']:.2f}x",
        )
    show(table)


if __name__ == "__main__":
    main()
