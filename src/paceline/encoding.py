"""From prompts and references to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import UsageError
from paceline.messages import Prompt, Reference, as_references, parts_of
from paceline.text import Tokenizer


class Encoder:
    """Encodes with a tokenizer."""

    tokenizer: Tokenizer

    def encode(
        self, prompt: Prompt, *, tools: Sequence[Mapping[str, Any]] = (), literal: bool = False
    ) -> list[int]:
        """Token ids of a prompt, special tokens and chat template included.

        tools: tools the model may call, in the form that transformers' chat templates take.
        literal: whether what looks like control tokens in messages is text.
        """
        text, messages, ids = parts_of(prompt)
        if not (text or messages or ids):
            raise UsageError("the prompt is empty: give at least one character, message or token")
        if not messages:
            return self._tokenize(text, special=True) if text else ids
        if not self.tokenizer.chat_template:
            raise UsageError(
                "this model has no chat template: give the prompt as plain text instead"
            )
        how = {"sanitize_control_tokens": True} if literal else {"tokenize": False}
        try:
            made = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tools=list(tools) or None, **how
            )
        except Exception as error:  # templates raise whatever they like
            raise UsageError(
                f"the model's chat template rejects these messages: {str(error)[:200]}"
            ) from error
        return [int(token) for token in made["input_ids"]] if literal else self._tokenize(made)

    def encode_references(self, references: Sequence[Reference] | None) -> list[list[int]]:
        """Token ids of reference texts, without special tokens; ids stay as they are."""
        texts = as_references(references)
        return [self._tokenize(text) if isinstance(text, str) else text for text in texts]

    def _tokenize(self, text: str, special: bool = False) -> list[int]:
        try:
            return list(self.tokenizer(text, add_special_tokens=special).input_ids)
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(
                "the text contains a lone surrogate, which is not a character: read it as UTF-8"
            ) from error
