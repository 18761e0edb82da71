"""transformers' plain `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.baselines.native import Native, generate
from paceline.bench.trial import Request, Trial

__all__ = ["TransformersGenerate"]


@dataclass(eq=False)
class TransformersGenerate:
    """Plain decoding by transformers."""

    name = "transformers"

    def check(self, gguf: Path | None) -> None:
        """Always available."""

    def open(self, name: str, native: Native) -> None:
        """Load the model."""
        self.name, self._native = name, native
        _ = native.model

    def generate(self, request: Request) -> Trial:
        """Generate once."""
        return generate(self._native, request)
