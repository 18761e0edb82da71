"""Adapters for other software on the same model.

Each is a contender like paceline's own methods, with settings in the same notation:
"transformers-lookup:k=10".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.bench.baselines.llama_cpp import LlamaCpp, LlamaCppLookup
from paceline.bench.baselines.native import (
    Baseline,
    Native,
    TransformersAssisted,
    TransformersGenerate,
    TransformersLookup,
)
from paceline.bench.memory import measure_load
from paceline.drafters.settings import parse_method, read_settings
from paceline.errors import check_known

__all__ = ["BASELINES", "Native", "check_baseline", "is_baseline", "make_baseline"]

BASELINES: dict[str, type[Baseline]] = {
    "transformers": TransformersGenerate,
    "transformers-lookup": TransformersLookup,
    "transformers-assisted": TransformersAssisted,
    "llama.cpp": LlamaCpp,
    "llama.cpp-lookup": LlamaCppLookup,
}


def is_baseline(name: str) -> bool:
    """Whether a name with settings denotes a baseline."""
    return parse_method(name)[0] in BASELINES


def check_baseline(name: str, gguf: Path | None = None) -> None:
    """Raise UsageError for wrong settings, software that is not installed, or a missing file."""
    _parse(name).check(gguf)


def make_baseline(name: str, native: Native) -> Any:
    """Make the contender of that name.

    native: what baselines share.

    Raises UsageError for wrong settings or files, ModelError if a model cannot be read.
    """
    baseline = _parse(name)
    baseline.check(native.gguf)
    baseline.name = name
    # As models are placed by default.
    device = torch.device(native.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _, baseline.loaded = measure_load(device, lambda: baseline.open(native))
    return baseline


def _parse(name: str) -> Baseline:
    kind, settings = parse_method(name)
    check_known("baseline", BASELINES, kind)
    return BASELINES[kind](**read_settings(BASELINES[kind], kind, settings))
