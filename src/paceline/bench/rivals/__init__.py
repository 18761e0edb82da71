"""Other software on the same model, one small adapter each.

Each is a contender like paceline's own methods. Settings are written as a method's are:
"transformers-lookup:k=10".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.rivals.llama_cpp import LlamaCpp, LlamaCppLookup
from paceline.bench.rivals.native import Native, Rival
from paceline.bench.rivals.transformers_assisted import TransformersAssisted
from paceline.bench.rivals.transformers_generate import TransformersGenerate
from paceline.bench.rivals.transformers_lookup import TransformersLookup
from paceline.drafters.settings import build, parse_method
from paceline.errors import UsageError

__all__ = ["RIVALS", "Native", "check_rival", "is_rival", "make_rival"]

RIVALS: dict[str, type[Rival]] = {
    "transformers": TransformersGenerate,
    "transformers-lookup": TransformersLookup,
    "transformers-assisted": TransformersAssisted,
    "llama.cpp": LlamaCpp,
    "llama.cpp-lookup": LlamaCppLookup,
}


def is_rival(name: str) -> bool:
    """Whether a name with settings is meant for a rival."""
    return parse_method(name)[0] in RIVALS


def check_rival(name: str, gguf: Path | None = None) -> None:
    """Raise UsageError for wrong settings, software that is not installed, or a missing file."""
    _parse(name).check(gguf)


def make_rival(name: str, native: Native) -> Any:
    """The contender of that name.

    native: hands out what rivals share.

    Raises UsageError for wrong settings or files, ModelError where a model cannot be read.
    """
    rival = _parse(name)
    rival.check(native.gguf)
    rival.open(name, native)
    return rival


def _parse(name: str) -> Rival:
    kind, settings = parse_method(name)
    if kind not in RIVALS:
        raise UsageError(f"there is no rival {kind!r}: use one of {', '.join(RIVALS)}")
    return build(RIVALS[kind], kind, settings)
