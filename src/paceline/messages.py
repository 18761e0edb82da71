"""Forms of a prompt: text, messages, or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from paceline.errors import UsageError

Message = Mapping[str, str]
"""{"role": "user" | "assistant" | "system", "content": text}"""

Prompt = str | Message | Sequence[Message] | Sequence[int]
"""Text to continue, messages for the model's chat template, or token ids, also as an array."""

Reference = str | Sequence[int]
"""A text that the output may resemble, or its token ids, also as an array."""

_NO_PROMPT = (
    "a prompt must be a text, messages with a role and content, or token ids: for several prompts "
    "use generate_batch"
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
    if items and isinstance(items[0], Mapping):
        messages = [item for item in items if isinstance(item, Mapping) and "role" in item]
        if len(messages) == len(items):
            return "", messages, []
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
