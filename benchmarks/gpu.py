"""Everything that waits for a GPU, in pieces, for half an hour at one in calls of nine minutes.

    python benchmarks/gpu.py --out benchmarks/results/gpu --data DIR
    python benchmarks/gpu.py --list
    python benchmarks/gpu.py --device cpu --rehearsal

Every call goes on where the last one ended and stops before its --minutes are over: repeat the
command until nothing is left. Pieces come in the order of what is most wanted; each is a process of
its own, with a result file, NAME.log and a line of state.json in --out. One that fails does not stop
the others. `python tools/gpu_tables.py DIR` makes tables of what was found.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from gpu_prompts import MIXED, TASKS, write_prompts, write_short_prompts
from paceline.cli.bench.shared import result_path
from paceline.errors import PacelineError, UsageError
from piece_state import State
from pieces import Piece, Runner, again, listing, named

BEGAN = monotonic()
ROOT = Path(__file__).resolve().parent.parent
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"
OUT, REHEARSED = "benchmarks/results/gpu", "build/gpu-rehearsal"
METHODS = ("plain", "anpd", "pld", "llma", "lookahead")
TRAINED, DRAFTING = ("ppd", "medusa", "chimera"), ("speculative", "ouroboros")
RIVALS = ("transformers", "transformers-lookup")
ENGINES = {"graphs": "transformers", "eager": "transformers-eager"}
CHECKED = ("float32", "bfloat16")


@dataclass(frozen=True)
class Sizes:
    """How much is measured; lists of numbers are written as the commands take them.

    prompts: of each task for the open batches. mixed: of each task for everything else.
    """

    prompts: int = 16
    mixed: int = 4
    tokens: int = 128
    repeats: int = 2
    passes: int = 7
    widths: str = "1 2 3 4 6 8 12 16 24 32 48 64"
    contexts: str = "300 4000"
    sections: str = "passes,prefill"


TINY = Sizes(1, 1, 8, 1, 1, "1 2 4", "16 32", "passes")


class Plan:
    """The pieces, and what their commands have in common."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.device = Path(_shown(options.out)), options.device
        self.sizes = TINY if options.rehearsal else Sizes()
        self.dtype = "float32" if options.rehearsal else "bfloat16"
        self.small = _shown_model(options.small)
        self.models = {_label(name): _shown_model(name) for name in options.model}
        if len(self.models) < len(set(options.model)):
            raise UsageError("two models have the same name: rename a folder or file")

    def pieces(self) -> list[Piece]:
        """In the order of what is most wanted."""
        work = ["benchmarks/gpu_work.py"]
        found = [
            self._piece("machine", "versions, memory, bandwidth, launches", 90, [*work, "machine"]),
            self._piece("tests", "the tests that need a GPU", 240, [*work, "tests"]),
        ]
        for dtype in CHECKED:
            about = f"every method's text beside transformers' generate, {dtype}"
            found.append(self._lossless(dtype, about))
        for kind in (self._tune, self._methods, self._batches, self._passes, self._memory):
            for label, model in self.models.items():
                found += kind(label, model)
        return found

    def _piece(self, name: str, about: str, limit: float, command: Sequence[str]) -> Piece:
        """A script that takes --json and a device."""
        result = self.out / f"{name}.json"
        words = [*command, "--json", str(result), "--device", self.device]
        return Piece(name, about, limit, 30, _python(words), (ROOT / result,))

    def _lossless(self, dtype: str, about: str) -> Piece:
        name, sizes = f"losslessness-{dtype}", self.sizes
        lines, summary = self.out / f"{name}.jsonl", self.out / f"{name}.json"
        words = ["benchmarks/losslessness.py", "--data", str(self.out / "prompts")]
        words += ["--out", str(lines), "--tasks", MIXED, "--per-task", str(3 * sizes.mixed)]
        words += ["--max-new-tokens", str(sizes.tokens), "--seeds", "0", "--model", self.small]
        words += ["--device", self.device, "--dtype", dtype]
        command = _with_methods(words, self.small)
        return Piece(name, about, 150, 45, command, (ROOT / summary, ROOT / lines))

    def _placed(self, model: str) -> list[str]:
        return ["--model", model, "--dtype", self.dtype]

    def _tune(self, label: str, model: str) -> list[Piece]:
        words = ["-m", "paceline", "tune", *self._placed(model)]
        words += ["--repeats", str(self.sizes.passes)]
        return [self._model_piece(f"tune-{label}", "what passes cost, by width", 150, words, model)]

    def _methods(self, label: str, model: str) -> list[Piece]:
        result, sizes = result_path(self.out / "methods", "run", model), self.sizes
        words = ["-m", "paceline", "bench", "run", MIXED, *self._placed(model), "--resume"]
        words += ["--data", str(self.out / "prompts"), "--out", str(result.parent)]
        words += ["--repeats", str(sizes.repeats), "--max-new-tokens", str(sizes.tokens)]
        command = _with_methods([*words, "--device", self.device], model, RIVALS)
        about = "methods beside transformers on edits, summaries and chat"
        return [Piece(f"methods-{label}", about, 400, 60, command, (ROOT / result,))]

    def _batches(self, label: str, model: str) -> list[Piece]:
        words = ["benchmarks/open_batch.py", "throughput", *self._placed(model)]
        words += ["--data", str(self.out / "prompts"), "--tasks", ",".join(TASKS)]
        words += ["--max-new-tokens", str(self.sizes.tokens // 2)]
        words += ["--repeats", str(self.sizes.repeats)]
        about = "tokens per second of many texts at once"
        return [self._model_piece(f"batches-{label}", about, 180, words, model)]

    def _passes(self, label: str, model: str) -> list[Piece]:
        pieces = []
        for name, engine in ENGINES.items():
            words = ["benchmarks/target_pass.py", *self._placed(model), "--engine", engine]
            words += ["--sections", self.sizes.sections, "--repeats", str(self.sizes.passes)]
            words += ["--widths", *self.sizes.widths.split()]
            words += ["--contexts", *self.sizes.contexts.split()]
            about = f"passes by width and context beside transformers, {name}"
            pieces.append(self._model_piece(f"passes-{name}-{label}", about, 120, words, model))
        return pieces

    def _memory(self, label: str, model: str) -> list[Piece]:
        words = ["benchmarks/gpu_work.py", "memory", *self._placed(model)]
        words += ["--max-new-tokens", str(self.sizes.tokens // 2)]
        words += ["--contexts", *self.sizes.contexts.split()]
        about = "what a model holds, loaded and writing"
        return [self._model_piece(f"memory-{label}", about, 120, words, model)]

    def _model_piece(
        self, name: str, about: str, limit: float, words: Sequence[str], model: str
    ) -> Piece:
        piece = self._piece(name, about, limit, words)

        def command() -> Sequence[str]:
            _fingerprint(model)
            return piece.command()

        return Piece(name, about, limit, 45, command, piece.results)


def _python(words: Sequence[str]) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, *words]


def _with_methods(
    words: Sequence[str], model: str, rivals: Sequence[str] = ()
) -> Callable[[], Sequence[str]]:
    """The command with --methods: those that have what they need for the model, and rivals."""

    def command() -> Sequence[str]:
        from paceline.drafters.parts import shipped_for
        from paceline.models.draft_folder import shipped_draft

        mark = _fingerprint(model)
        trained = [method for method in TRAINED if shipped_for(method, mark)]
        drafting = DRAFTING if shipped_draft(mark) else ()
        methods = ",".join([*METHODS, *trained, *drafting, *rivals])
        return [sys.executable, *words, "--methods", methods]

    return command


def _fingerprint(model: str) -> str:
    """Of weights that are on this machine. Raises ModelError where they are not: a machine that is
    lent for half an hour is not to spend it on downloads."""
    from paceline.models.fingerprint import fingerprint
    from paceline.models.source import resolve

    return fingerprint(resolve(model, local_files_only=True))


def _label(model: str) -> str:
    """A model's name for files."""
    name = Path(model).name.removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _shown(path: Path) -> str:
    """As the commands have it, which run in the repository: without the folders above that."""
    path = path.expanduser().absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _shown_model(name: str) -> str:
    return _shown(Path(name)) if os.path.exists(os.path.expanduser(name)) else name


def _device_name(device: str) -> str:
    """What results belong to. Raises UsageError where the device is not there."""
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
    """Of the pieces: they import this checkout; what a rehearsal measures stays out of the cache."""
    from paceline.models import cache_root

    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found["PYTHONUNBUFFERED"] = "1"
    if options.rehearsal:
        cache = options.out.absolute() / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        if not (cache / "models").is_symlink():
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
