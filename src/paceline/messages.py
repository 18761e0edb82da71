"""Forms of a prompt: text, messages, or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.errors import UsageError

__all__ = ["Message", "Prompt", "Reference", "as_messages", "query_of"]

Message = Mapping[str, str]
"""{"role": "user" | "assistant" | "system", "content": text}"""

Prompt = str | Sequence[Message] | Sequence[int]
"""Text to continue, messages for the model's chat template, or token ids."""


Reference = str | Sequence[int]
"""A text that the output may resemble, or its token ids."""


def as_messages(prompt: str | Sequence[Message]) -> Sequence[Message]:
    """The messages as they are; a string as one user message. Raises UsageError if it is blank."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("the prompt is empty: write at least one character")
        return [{"role": "user", "content": prompt}]
    return prompt


def query_of(prompt: Prompt) -> str:
    """The query for a store: the text, or the conversation, last message first."""
    if isinstance(prompt, str):
        return prompt
    messages = [message for message in prompt if isinstance(message, Mapping)]
    contents = [m.get("content") for m in messages if m.get("role") != "system"]
    # Not the last message alone: "make it shorter" is asked in many conversations, with a different
    # answer in each. It comes first because long queries are searched by their two ends, and
    # encoders read the beginning. A system message would make all its conversations look alike.
    return "\n".join(said for said in reversed(contents) if isinstance(said, str))
