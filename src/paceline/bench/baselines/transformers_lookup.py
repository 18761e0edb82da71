"""transformers' prompt lookup decoding (`prompt_lookup_num_tokens`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.baselines.native import Native, generate
from paceline.bench.trial import Request, Trial
from paceline.drafters.settings import at_least

__all__ = ["TransformersLookup"]


@dataclass(eq=False)
class TransformersLookup:
    """Prompt lookup by transformers.

    k: most tokens copied per round, >= 1.
    """

    name = "transformers-lookup"
    k: int = 10

    def __post_init__(self) -> None:
        at_least(1, k=self.k)

    def check(self, gguf: Path | None) -> None:
        """Always available."""

    def open(self, name: str, native: Native) -> None:
        """Load the model."""
        self.name, self._native = name, native
        _ = native.model

    def generate(self, request: Request) -> Trial:
        """Generate once."""
        return generate(self._native, request, prompt_lookup_num_tokens=self.k)
