"""Texts that the target only reads: prompts without answers.

Reading a text costs a model a fraction of what writing one costs, and its distribution is there at
every place of it. So where answers are few, what drafts learns the language from prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from paceline.training.dataset import encoded
from paceline.training.examples import Example, is_held_back
from paceline.training.order import PromptFile, interleave
from paceline.training.recipe import Recipe

__all__ = ["ReadTexts"]


@dataclass(frozen=True)
class ReadTexts:
    """Texts, and the files they are from. They have no answer: all places are those of a prompt."""

    files: tuple[PromptFile, ...] = ()
    texts: tuple[Example, ...] = ()

    @classmethod
    def of(
        cls,
        files: Sequence[PromptFile],
        tokenizer: PreTrainedTokenizerBase,
        recipe: Recipe,
        fewest_tokens: int = 8,
    ) -> ReadTexts:
        """The beginnings of as many texts as the steps need, of all files in proportion to their
        size, in the chat template where there is one.

        Prompts whose answers would be held back are left out, and so are those of fewer tokens.
        """
        found: list[Example] = []
        needed = recipe.batch * (recipe.steps // 2 + 1)
        for record in interleave(files, recipe.seed):
            if len(found) == needed:
                break
            if not is_held_back(record.id, recipe.held_back):
                tokens = encoded(record, tokenizer)[: recipe.longest]
                if len(tokens) >= fewest_tokens:
                    found.append(Example(record.id, tuple(tokens), len(tokens) - 1))
        return cls(tuple(files), tuple(found))

    def as_json(self) -> list[dict[str, Any]]:
        """For records: names, sha256 and licences of the files."""
        return [file.as_json() for file in self.files]
