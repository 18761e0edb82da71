"""What benchmarks/gpu.py runs: the pieces, most wanted first."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_prompts import MIXED, TASKS
from paceline.cli.bench.shared import result_path
from paceline.errors import UsageError
from pieces import Piece

ROOT = Path(__file__).resolve().parent.parent
TRAINED, DRAFTING = ("eagle", "medusa", "chimera", "ppd"), ("speculative", "ouroboros")
BASELINES = ("transformers", "transformers-lookup")
ENGINES = {
    "compiled": "compiled",
    "graphs": "transformers",
    "eager": "transformers-eager",
}
CHECKED = ("float32", "bfloat16")


@dataclass(frozen=True)
class Sizes:
    """How much is measured; lists of numbers are written as the commands take them.

    prompts: per task, for the open batches. mixed: per task, for everything else.
    trained: whether methods that need trained parts are tried. shapes: models of random weights.
    """

    prompts: int = 16
    mixed: int = 4
    tokens: int = 128
    repeats: int = 2
    passes: int = 7
    widths: str = "1 2 3 4 6 8 12 16 24 32 48 64"
    contexts: str = "300 4000"
    sections: str = "passes,prefill"
    methods: tuple[str, ...] = ("plain", "auto", "anpd", "pld", "llma", "lookahead")
    trained: bool = True
    shapes: str = "qwen2.5-1.5b llama-3.1-8b"


TINY = Sizes(1, 1, 8, 1, 1, "1 2 4", "16 32", "passes", ("plain", "anpd"), False, "tiny")


class Plan:
    """The pieces, and what their commands share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.device = Path(_shown(options.out)), options.device
        self.sizes = TINY if options.rehearsal else Sizes()
        self.dtype = "float32" if options.rehearsal else "bfloat16"
        self.small = _shown_model(options.small)
        self.models = {_label(name): _shown_model(name) for name in options.model}
        if len(self.models) < len(set(options.model)):
            raise UsageError("two models have the same name: rename a folder or file")

    def pieces(self) -> list[Piece]:
        """All pieces, most wanted first."""
        work = ["benchmarks/gpu_work.py"]
        found = [
            self._piece("machine", "versions, memory, bandwidth, launches", 90, [*work, "machine"]),
            self._piece("tests", "the tests that need a GPU", 240, [*work, "tests"]),
        ]
        for dtype in CHECKED:
            about = f"every method's text beside transformers' generate, {dtype}"
            found.append(self._lossless(dtype, about))
        found.append(self._shapes())
        for kind in (self._tune, self._methods, self._batches, self._passes, self._memory):
            for label, model in self.models.items():
                found += kind(label, model)
        return found

    def _piece(self, name: str, about: str, limit: float, command: Sequence[str]) -> Piece:
        """A piece that runs a script with --json and --device."""
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
        command = self._with_methods(words, self.small)
        return Piece(name, about, 150, 45, command, (ROOT / summary, ROOT / lines))

    def _shapes(self) -> Piece:
        sizes, words = self.sizes, ["benchmarks/gpu_shapes.py", "--dtype", self.dtype]
        words += ["--repeats", str(sizes.passes)]
        for name in sizes.shapes.split():
            words += ["--model", name]
        return self._piece("shapes", "passes of models with random weights", 120, words)

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
        command = self._with_methods([*words, "--device", self.device], model, BASELINES)
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

    def _with_methods(
        self, words: Sequence[str], model: str, baselines: Sequence[str] = ()
    ) -> Callable[[], Sequence[str]]:
        """The command with --methods: those that work with the model, and the baselines."""

        def command() -> Sequence[str]:
            mark = _fingerprint(model)
            trained = _trained_for(mark) if self.sizes.trained else []
            methods = ",".join([*self.sizes.methods, *trained, *baselines])
            return [sys.executable, *words, "--methods", methods]

        return command


def _trained_for(fingerprint: str) -> list[str]:
    """Methods whose parts for the model ship with the package."""
    from paceline.drafters.parts import shipped_for
    from paceline.models.draft_folder import shipped_draft

    found = [method for method in TRAINED if shipped_for(method, fingerprint)]
    return [*found, *(DRAFTING if shipped_draft(fingerprint) else ())]


def _python(words: Sequence[str]) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, *words]


def _fingerprint(model: str) -> str:
    """The fingerprint of weights on this machine. Raises ModelError if they are not here: half an
    hour of GPU time is too short for downloads."""
    from paceline.models.fingerprint import fingerprint
    from paceline.models.source import resolve

    return fingerprint(resolve(model, local_files_only=True))


def _label(model: str) -> str:
    """A model's name as part of a file name."""
    name = Path(model).name.removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _shown(path: Path) -> str:
    """A path as commands show it: relative to the repository, where they run, if it is inside."""
    path = path.expanduser().absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _shown_model(name: str) -> str:
    return _shown(Path(name)) if os.path.exists(os.path.expanduser(name)) else name
