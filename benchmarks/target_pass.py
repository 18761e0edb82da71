"""What a pass of the model costs, paceline's way and transformers' own.

    python benchmarks/target_pass.py --model smollm2-135m --json target_pass.json
    python benchmarks/target_pass.py --edits prompts.jsonl --sections edits --json edits.json

Both run in one process, on the CPU, in float32, and take turns. Sections:

- memory: the most a process needs that loads the model through paceline and generates a little
- plain: greedy decoding, tokens per second, and whether the texts are the same
- passes: a pass by its width, with 300 tokens in the cache, and what memory bandwidth allows
- prefill: reading a prompt
- edits: prompts of a file, with prompt lookup on transformers' side and a drafter on paceline's

The result file is written after each section, so an interrupted run keeps what it has measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch

import paceline
from generations import Save, measure_edits, measure_plain, show_generations
from paceline.machine import describe_machine, describe_versions
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.measure import Floor, measure_floor
from paceline.targets.prepare import AUTO, WEIGHTS
from paceline.targets.weights import weight_bytes
from pair import Pair, rotations
from tables import new_table, show, shown_command

SECTIONS = ("memory", "plain", "passes", "prefill", "edits")
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 300
PREFILLS = (512, 1024)
CHILD_TOKENS = 8

# What a process may need, to set the measured peak against: weights, and the rest.
MEMORY_FACTOR, MEMORY_REST = 1.3, 600_000_000

Measure = Callable[[Pair, argparse.Namespace, Save], None]
Show = Callable[[dict[str, Any]], None]


def main() -> None:
    options = _arguments()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.memory_child:
        _generate_and_tell(options)
        return
    report: dict[str, Any] = {}

    def save(section: dict[str, Any]) -> None:
        report.update(section)
        if options.json is not None:
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n")

    # The child comes before the models of this process, which may leave it no memory.
    memory = _resident_of_child(options) if "memory" in options.sections else None
    pair = Pair.load(options.model, options.weights)
    save(_circumstances(pair, options))
    if memory is not None:
        save({"memory": _memory(pair, memory)})
        _show_memory(report["memory"])
    for name, measure, show_section in _sections(options):
        measure(pair, options, save)
        show_section(report[name])


def _sections(options: argparse.Namespace) -> Iterator[tuple[str, Measure, Show]]:
    """Those after memory that were asked for: name, what measures and saves, what prints."""
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
    parser.add_argument("--weights", default=AUTO, choices=WEIGHTS)
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--repeats", type=int, default=7, help="runs per median")
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
        options.json.open("a").close()  # not after an hour
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
        "preparation": target.report["preparation"],
        "budget": session.budget,
        "repeats": options.repeats,
    }


def _parameter_bytes(pair: Pair) -> int:
    """Bytes of the weights as they were loaded, shared ones counted once."""
    return sum(weights.nbytes for weights in pair.native.parameters())


# memory


def _resident_of_child(options: argparse.Namespace) -> dict[str, int] | None:
    """What a fresh process says of its memory after a few tokens; None where it cannot tell."""
    if not Path("/proc/self/status").exists():
        return None
    threads = [] if options.threads is None else ["--threads", str(options.threads)]
    call = [sys.executable, __file__, "--memory-child", "--model", options.model]
    done = subprocess.run(
        [*call, "--weights", options.weights, *threads], check=True, stdout=subprocess.PIPE
    )
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told


def _generate_and_tell(options: argparse.Namespace) -> None:
    """The child: load, generate, and print resident bytes, at most and now."""
    session = paceline.load(options.model, device="cpu", dtype="float32", weights=options.weights)
    session.generate("Hello", max_new_tokens=CHILD_TOKENS, ignore_eos=True)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    peak, now = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
    print(json.dumps({"peak_bytes": peak, "resident_bytes": now}))


def _memory(pair: Pair, told: dict[str, int]) -> dict[str, Any]:
    weights = _parameter_bytes(pair)
    bound = round(MEMORY_FACTOR * weights + MEMORY_REST)
    return told | {
        "parameter_bytes": weights,
        "peak_over_parameters": told["peak_bytes"] / weights,
        "bound": f"{MEMORY_FACTOR} x parameters + {MEMORY_REST / 1e6:.0f} MB",
        "bound_bytes": bound,
        "within_bound": told["peak_bytes"] <= bound,
    }


def _show_memory(memory: dict[str, Any]) -> None:
    table = new_table("memory of a process that loads and generates", "", "MB", "of the parameters")
    for name in ("parameter_bytes", "resident_bytes", "peak_bytes", "bound_bytes"):
        size = memory[name]
        label = memory["bound"] if name == "bound_bytes" else name.removesuffix("_bytes")
        table.add_row(label, f"{size / 1e6:,.0f}", f"{size / memory['parameter_bytes']:.2f}x")
    show(table)


# passes and prefill


def _passes(pair: Pair, options: argparse.Namespace, save: Save) -> None:
    curves = _curves(pair, options.repeats)
    own, other = curves["paceline"], curves["transformers"]
    rows = [
        {
            "width": width,
            "paceline_ms": own.cost(width),
            "transformers_ms": other.cost(width),
            "paceline_relative": own.relative(width),
            "transformers_relative": other.relative(width),
            "transformers_over_paceline": other.cost(width) / own.cost(width),
        }
        for width in WIDTHS
    ]
    section = {"context": CONTEXT, "repeats": options.repeats, "widths": rows}
    save({"passes": section | {"floor": _floor(pair, curves)}})


def _curves(pair: Pair, repeats: int) -> dict[str, CostCurve]:
    """The cost of a pass by its width; widths come in a new order each time, sides in turns."""
    random, size = Random(0), pair.session.target.vocab_size
    text = [random.randrange(size) for _ in range(CONTEXT + 1)]
    seconds: dict[tuple[str, int], list[float]] = {}
    with pair.passes(text) as timed:
        sides = dict(zip(("transformers", "paceline"), timed))
        order = rotations(list(sides))
        for repeat in range(repeats + 1):
            for width in random.sample(WIDTHS, len(WIDTHS)):
                tokens = [random.randrange(size) for _ in range(width - 1)]
                for side in next(order):
                    taken = sides[side](tokens)
                    if repeat:  # the first round warms up
                        seconds.setdefault((side, width), []).append(taken)
    return {
        side: CostCurve(
            tuple(CostPoint(w, CONTEXT, 1000 * median(seconds[side, w])) for w in WIDTHS)
        )
        for side in sides
    }


def _floor(pair: Pair, curves: dict[str, CostCurve]) -> dict[str, Any]:
    """How near each side comes to reading its weights at the memory's speed."""
    prepared = measure_floor(pair.session.target)
    floors = {
        "transformers": Floor(weight_bytes(pair.native), prepared.gb_per_s),
        "paceline": prepared,
    }
    sides = {
        side: {
            "weight_bytes": floor.weight_bytes,
            "floor_ms": floor.milliseconds,
            "pass_ms": curves[side].cost(1),
            "share": floor.share(curves[side]),
        }
        for side, floor in floors.items()
    }
    return {"gb_per_s": prepared.gb_per_s, "sides": sides}


def _show_passes(section: dict[str, Any]) -> None:
    title = f"a pass behind {section['context']} tokens, medians of {section['repeats']}"
    sides = ("paceline", "transformers")
    columns = [f"{side} {what}" for side in sides for what in ("ms", "of one token")]
    table = new_table(title, "width", *columns, "transformers/paceline")
    for row in section["widths"]:
        times = [
            text
            for side in sides
            for text in (f"{row[f'{side}_ms']:.2f}", f"{row[f'{side}_relative']:.2f}x")
        ]
        table.add_row(str(row["width"]), *times, f"{row['transformers_over_paceline']:.2f}x")
    show(table)
    _show_floor(section["floor"])


def _show_floor(section: dict[str, Any]) -> None:
    title = f"a pass of one token at {section['gb_per_s']:.1f} GB/s"
    table = new_table(title, "", "weights MB", "floor ms", "ms", "share of the floor's speed")
    for side, found in section["sides"].items():
        table.add_row(
            side,
            f"{found['weight_bytes'] / 1e6:,.1f}",
            f"{found['floor_ms']:.2f}",
            f"{found['pass_ms']:.2f}",
            f"{found['share']:.0%}",
        )
    show(table)


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
