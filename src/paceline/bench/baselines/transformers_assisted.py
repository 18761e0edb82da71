"""transformers' assisted generation, with a smaller model as the assistant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.baselines.native import Native, generate
from paceline.bench.trial import Request, Trial
from paceline.errors import UsageError

__all__ = ["TransformersAssisted"]


@dataclass(eq=False)
class TransformersAssisted:
    """Assisted generation by transformers.

    draft: a smaller model with the same tokenizer: alias, folder, GGUF file or hub id.
    """

    name = "transformers-assisted"
    draft: str = ""

    def check(self, gguf: Path | None) -> None:
        """Require a draft model."""
        if not self.draft:
            raise UsageError(
                "transformers-assisted needs a draft model: transformers-assisted:draft=NAME"
            )

    def open(self, name: str, native: Native) -> None:
        """Load both models. Raises UsageError if their vocabularies differ in size."""
        self.name, self._native = name, native
        self._assistant = native.draft_model(self.draft)
        own, other = (
            each.config.get_text_config().vocab_size for each in (native.model, self._assistant)
        )
        if own != other:
            raise UsageError(
                f"{self.draft} has a vocabulary of {other} tokens and {native.source} of {own}: "
                "assisted generation needs a draft model with the same tokenizer"
            )

    def generate(self, request: Request) -> Trial:
        """Generate once."""
        return generate(self._native, request, assistant_model=self._assistant)
