"""Run the pieces of benchmarks/gpu.py that no other command measures: machine, tests, memory.

    python benchmarks/gpu_work.py machine --json machine.json --device cuda

machine  versions, device, memory, bandwidth, and the time to launch a kernel that does nothing
tests    the tests that need a GPU, each with its outcome
memory   what a model holds after loading, and its peak while it writes
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch

import paceline
from gpu_plan import ENGINES, ROOT
from paceline.bench.memory import peak_meter, resident_bytes
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.planning.measure import measure_bandwidth
from paceline.stopping import Stopping
from placing import add_placement, placement, waiting
from tables import shown_command

KERNELS = 1000


def machine(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The machine, its memory bandwidth, and the time of its kernel launches."""
    device = torch.device(options.device)
    found: dict[str, Any] = {"device": str(device), "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        found |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "processors": properties.multi_processor_count,
            "memory_bytes": total,
            "free_bytes": free,
        }
    found["bandwidth_gb_per_s"] = measure_bandwidth(device)
    found["kernel_microseconds"] = _kernels(device, options.repeats)
    return {"found": found}, 0


def _kernels(device: torch.device, repeats: int) -> dict[str, float]:
    """Microseconds of a kernel on one number: waited for, one of many, one of many in a graph."""
    number, wait = torch.zeros(1, device=device), waiting(device)

    def many() -> None:
        for _ in range(KERNELS):
            number.add_(1)

    found = {
        "waited_for": _seconds(lambda: number.add_(1), wait, repeats),
        "one_of_many": _seconds(many, wait, repeats) / KERNELS,
    }
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        found["one_of_many_in_a_graph"] = _seconds(graph.replay, wait, repeats) / KERNELS
    return {name: 1e6 * seconds for name, seconds in found.items()}


def _seconds(run: Callable[[], object], wait: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        wait()
        began = perf_counter()
        run()
        wait()
        times.append(perf_counter() - began)
    return median(times[1:])


class Outcomes:
    """A pytest plugin that keeps the outcome of every test."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Merge the three reports of a test; a failure decides its outcome, else a skip."""
        own = self.found.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        own["seconds"] = round(own["seconds"] + report.duration, 3)
        if report.outcome != "passed" and own["outcome"] != "failed":
            own["outcome"] = report.outcome
            own["reason"] = str(report.longreprtext).strip().rpartition("\n")[2][:500]


def tests(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run the tests marked `gpu`; the exit code is pytest's."""
    import pytest

    outcomes = Outcomes()
    # Without addopts, and so --strict-config, settings of absent plugins are no errors.
    given = ["-q", "-m", "gpu", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=short"]
    code = pytest.main([*given, "--rootdir", str(ROOT), *_marked()], plugins=[outcomes])
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for own in outcomes.found.values():
        counts[own["outcome"]] += 1
    return {"counts": counts, "tests": outcomes.found}, int(code)


def _marked() -> list[str]:
    """The test files with the mark: others may import packages that a GPU machine lacks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "pytest.mark.gpu" in path.read_text("utf-8")]


def memory(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Measure transformers' `generate`, then paceline, each on an empty device."""
    sides = []
    for name, engine in {"transformers": "", **ENGINES}.items():
        gc.collect()
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
        before = _held(options.device)
        write = _writer(engine, options)
        loaded = _held(options.device)
        random, texts = Random(0), []
        for context in options.contexts:
            ids = [random.randrange(1000) for _ in range(context)]
            meter = peak_meter(torch.device(options.device))
            write(ids)
            texts.append({"context": context, "peak_bytes": _less(meter(), before)})
        sides.append({"side": name, "loaded_bytes": _less(loaded, before), "texts": texts})
        print(sides[-1], file=sys.stderr, flush=True)
        del write
    return {"model": options.model, "max_new_tokens": options.max_new_tokens, "sides": sides}, 0


def _writer(engine: str, options: argparse.Namespace) -> Callable[[list[int]], object]:
    """Load a model; return a function that continues a prompt.

    engine: paceline's; "" for transformers' own `generate`.
    """
    if not engine:
        model = load_causal_lm(options.model, **placement(options)).model

        def generate(ids: list[int]) -> object:
            prompt, count = torch.tensor([ids], device=model.device), options.max_new_tokens
            model.generation_config.eos_token_id = None
            return model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )

        return generate
    session = paceline.load(
        options.model, "anpd", engine=engine, measure=False, **placement(options)
    )

    def write(ids: list[int]) -> None:
        session.target.forget()
        text = Generation(ids, make_drafter("anpd"), Stopping(options.max_new_tokens))
        for _ in decode(session.target, [text]):  # keeping rounds would keep their logits
            pass

    return write


def _held(device: str) -> int | None:
    """Bytes of GPU memory, or on a CPU of main memory, that this process holds."""
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated(device)
    return resident_bytes()


def _less(some: int | None, before: int | None) -> int | None:
    return None if some is None or before is None else some - before


WORK = {each.__name__: each for each in (machine, tests, memory)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 4000])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    add_placement(parser, "cuda", None)
    options = parser.parse_args()
    content, code = WORK[options.work](options)
    run = describe_run()
    if options.device.startswith("cuda"):
        run["machine"]["device"] = torch.cuda.get_device_name(options.device)
    content = {**run, "command": shown_command(), **content}
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
