"""Run all measurements that need a GPU, in pieces: half an hour, in calls of nine minutes.

    python benchmarks/gpu.py --out benchmarks/results/gpu --data DIR
    python benchmarks/gpu.py --list
    python benchmarks/gpu.py --device cpu --rehearsal

Every call continues where the last one ended and stops before its --minutes are over: repeat the
command until nothing is left. The most wanted pieces come first. Each runs in its own process and
has a result file, NAME.log and an entry of state.json in --out. A failing piece does not stop the
others. `python tools/gpu_tables.py DIR` makes tables of the results.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from time import monotonic

from gpu_plan import ROOT, Plan, Sizes
from gpu_prompts import write_prompts, write_short_prompts
from paceline.errors import PacelineError, UsageError
from piece_state import State
from pieces import Runner, again, listing, named

BEGAN = monotonic()
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"
OUT, REHEARSED = "benchmarks/results/gpu", "build/gpu-rehearsal"


def _device_name(device: str) -> str:
    """The name of the device that results belong to. Raises UsageError if it does not exist."""
    import torch

    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise UsageError(
            "this PyTorch sees no CUDA device: run it where one is, or rehearse it with --device "
            "cpu --rehearsal"
        )
    try:
        return str(torch.cuda.get_device_name(device))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UsageError(f"there is no device {device!r}: use cuda or cuda:N") from error


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """The pieces' environment: they import this checkout; rehearsals get their own cache."""
    from paceline.models import cache_root

    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found["PYTHONUNBUFFERED"] = "1"
    if options.rehearsal:
        cache = options.out.absolute() / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "models").unlink(missing_ok=True)
        (cache / "models").symlink_to(cache_root().absolute() / "models")
        found["PACELINE_CACHE"] = str(cache)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help=f"default: {OUT}, of rehearsals {REHEARSED}")
    parser.add_argument("--minutes", type=float, default=9, help="of this call, at most")
    parser.add_argument("--model", action="append", help=f"may be repeated; default: {LARGE}")
    parser.add_argument("--small", default=SMALL, help="model whose texts are checked")
    parser.add_argument("--data", type=Path, help="folder of suites; default: bundled prompts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes and two prompts")
    parser.add_argument("--only", action="append", default=[], metavar="PIECE")
    parser.add_argument("--again", action="append", default=[], metavar="PIECE")
    parser.add_argument("--list", action="store_true", help="how all pieces stand; runs none")
    options = parser.parse_args()
    options.out = options.out or ROOT / (REHEARSED if options.rehearsal else OUT)
    options.model = options.model or [options.small if options.rehearsal else LARGE]
    if options.device == "cpu" and not (options.rehearsal or options.list):
        parser.error("on a CPU this would take hours: add --rehearsal")
    return options


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _arguments()
    try:
        return _run(options)
    except (PacelineError, OSError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gpu: interrupted; repeat the command to go on", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    pieces = Plan(options).pieces()
    place = options.out / "state.json"
    if options.list:
        print("\n".join(listing(pieces, State.open(place))))
        return 0
    chosen = named(pieces, options.only) if options.only else pieces
    repeated = named(pieces, options.again)
    about = {"device": _device_name(options.device), "rehearsal": options.rehearsal}
    state = State.open(place, about)
    if options.rehearsal:
        write_short_prompts(options.out / "prompts")
    else:
        sizes = Sizes()
        write_prompts(options.out / "prompts", options.data, sizes.prompts, sizes.mixed)
    for piece in repeated:
        again(piece, state)
    runner = Runner(options.out, BEGAN + 60 * options.minutes, _environment(options), ROOT, _note)
    well = runner.run(chosen, state)
    _note("\n".join(["", *listing(pieces, state)]))
    left = [piece.name for piece in pieces if not state[piece.name].over]
    _note(f"repeat the command to go on with {', '.join(left)}" if left else "nothing is left")
    return 0 if well else 1


def _note(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
