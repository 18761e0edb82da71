"""Measure time and memory of whole processes, from the command to the first tokens.

    python benchmarks/start_up.py --models smollm2-135m qwen2.5-coder-1.5b --json start-up.json

For each model, `paceline generate` runs as a user runs it: once with nothing cached by earlier
starts, then --repeats times with what that run cached. Run the script twice if the files are not in
memory yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from paceline.machine import describe_run
from paceline.models import ModelStore, clear_prepared

PROMPT = "The capital of France is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=4)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    found = []
    for model in options.models:
        clear_prepared()
        first = started(model, options.max_new_tokens)
        later = [started(model, options.max_new_tokens) for _ in range(options.repeats)]
        file = ModelStore().path(model) / "model.gguf"
        found.append(
            {
                "model": model,
                "file_megabytes": file.stat().st_size / 1e6,
                "first_seconds": first["seconds"],
                "later_seconds": median(each["seconds"] for each in later),
                "first_peak_megabytes": first["peak_megabytes"],
                "later_peak_megabytes": median(each["peak_megabytes"] for each in later),
                "runs": [first, *later],
            }
        )
        print(json.dumps(found[-1]), file=sys.stderr)
    options.json.write_text(json.dumps({**describe_run(), "models": found}, indent=2) + "\n")


def started(model: str, tokens: int) -> dict[str, Any]:
    """One process: seconds from start to end, and its peak memory."""
    command = [sys.executable, "-m", "paceline", "generate", PROMPT, "--model", model]
    began = perf_counter()
    process = subprocess.Popen(
        [*command, "-n", str(tokens)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"paceline ended with {process.returncode}")
    return {"seconds": perf_counter() - began, "peak_megabytes": used.ru_maxrss * 1024 / 1e6}


if __name__ == "__main__":
    main()
