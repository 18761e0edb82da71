"""Prompts in all their forms, and the token ids they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from paceline.errors import UsageError
from paceline.text import Tokenizer

Message = Mapping[str, str]
"""{"role": "user" | "assistant" | "system", "content": text}"""

Prompt = str | Message | Sequence[Message] | Sequence[int]
"""Text to continue, messages for the model's chat template, or token ids, also as an array."""

Reference = str | Sequence[int]
"""A text that the output may resemble, or its token ids, also as an array."""

_NO_PROMPT = (
    "a prompt must be a text, messages with a role and a text as content, or token ids: for several "
    "prompts use generate_batch"
)
_NO_REFERENCES = "references must be texts or lists of token ids: put even a single one into a list"


def parts_of(prompt: Prompt) -> tuple[str, list[Message], list[int]]:
    """A prompt as its text, its messages or its token ids, with nothing for the other two; a lone
    message is a conversation.

    Raises UsageError for what is no prompt. An empty one is left to the caller.
    """
    if isinstance(prompt, str):
        return prompt, [], []
    items: list[Any] = [prompt] if isinstance(prompt, Mapping) else _items(prompt, _NO_PROMPT)
    if items and all(map(_is_message, items)):
        return "", items, []
    return "", [], _token_ids(items, _NO_PROMPT)


def as_references(references: Sequence[Reference] | None) -> list[str | list[int]]:
    """References as a list, each a text or token ids; a string is one of them, None is none.

    Raises UsageError for what is no reference.
    """
    given: Any = [references] if isinstance(references, str) else references
    items = [] if given is None else _items(given, _NO_REFERENCES)
    return [item if isinstance(item, str) else _token_ids(item, _NO_REFERENCES) for item in items]


def as_messages(prompt: str | Message | Sequence[Message]) -> Message | Sequence[Message]:
    """The messages as they are; a string as one user message. Raises UsageError if it is blank."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("the prompt is empty: write at least one character")
        return [{"role": "user", "content": prompt}]
    return prompt


def query_of(prompt: Prompt) -> str:
    """The query for a store: the text, or the conversation, last message first."""
    text, messages, _ = parts_of(prompt)
    contents = [m.get("content") for m in messages if m.get("role") != "system"]
    # Not the last message alone: "make it shorter" is asked in many conversations. It comes first
    # because long queries are searched by their two ends, and encoders read the beginning. A system
    # message would make all its conversations look alike.
    return text or "\n".join(said for said in reversed(contents) if isinstance(said, str))


def _is_message(item: Any) -> bool:
    """Whether it has a role and, if any content, text or parts; templates would write the Python
    notation of bytes or numbers."""
    if not isinstance(item, Mapping) or "role" not in item:
        return False
    content = item.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    return content is None or all(isinstance(part, str | Mapping) for part in parts)


def _items(given: Any, wanted: str) -> list[Any]:
    """What a sequence or an array holds."""
    if isinstance(given, bytes | bytearray | memoryview):  # their numbers are no token ids
        raise UsageError(wanted)
    try:
        return list(given.tolist() if hasattr(given, "tolist") else given)
    except TypeError as error:
        raise UsageError(wanted) from error


def _token_ids(given: Any, wanted: str) -> list[int]:
    try:
        return [index(token) for token in _items(given, wanted)]
    except TypeError as error:
        raise UsageError(wanted) from error


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
