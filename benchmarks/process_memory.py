"""Main memory of a process that loads a model and generates: a section of target_pass.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import paceline
from placing import placement
from tables import new_table, show

CHILD_TOKENS = 8

# The bound on the measured peak: a multiple of the weights, plus a rest in bytes.
MEMORY_FACTOR, MEMORY_REST = 1.3, 600_000_000


def resident_of_child(options: argparse.Namespace) -> dict[str, int] | None:
    """Memory of a fresh process after a few tokens; None if the system does not tell."""
    if not Path("/proc/self/status").exists():
        return None
    threads = [] if options.threads is None else ["--threads", str(options.threads)]
    script = str(Path(__file__).with_name("target_pass.py"))
    call = [sys.executable, script, "--memory-child", "--model", options.model]
    place = ["--device", options.device, "--dtype", options.dtype, "--weights", options.weights]
    done = subprocess.run([*call, *place, *threads], check=True, stdout=subprocess.PIPE)
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told


def generate_and_tell(options: argparse.Namespace) -> None:
    """Load, generate, and print peak and current resident bytes; runs in the child."""
    session = paceline.load(options.model, weights=options.weights, **placement(options))
    session.generate("Hello", max_new_tokens=CHILD_TOKENS, ignore_eos=True)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    peak, now = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
    print(json.dumps({"peak_bytes": peak, "resident_bytes": now}))


def compared(told: dict[str, int], weights: int) -> dict[str, Any]:
    """The child's figures beside `weights`, the bytes of the model as loaded."""
    bound = round(MEMORY_FACTOR * weights + MEMORY_REST)
    return told | {
        "parameter_bytes": weights,
        "peak_over_parameters": told["peak_bytes"] / weights,
        "bound": f"{MEMORY_FACTOR} x parameters + {MEMORY_REST / 1e6:.0f} MB",
        "bound_bytes": bound,
        "within_bound": told["peak_bytes"] <= bound,
    }


def show_memory(memory: dict[str, Any]) -> None:
    table = new_table("memory of a process that loads and generates", "", "MB", "of the parameters")
    for name in ("parameter_bytes", "resident_bytes", "peak_bytes", "bound_bytes"):
        size = memory[name]
        label = memory["bound"] if name == "bound_bytes" else name.removesuffix("_bytes")
        table.add_row(label, f"{size / 1e6:,.0f}", f"{size / memory['parameter_bytes']:.2f}x")
    show(table)
