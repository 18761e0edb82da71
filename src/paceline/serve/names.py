"""Model names and API keys of servers, however they are started."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import abspath
from pathlib import Path

from paceline.errors import UsageError

__all__ = ["KEY_VARIABLE", "checked_keys", "public_name"]

KEY_VARIABLE = "PACELINE_API_KEY"
"""Environment variable that holds the keys, separated by spaces."""

_SHORTEST_KEY = 8


def public_name(model: str) -> str:
    """A model's name, without folders if it is a path."""
    return Path(abspath(model)).name if Path(model).exists() else model


def checked_keys(keys: Sequence[str]) -> list[str]:
    """The keys. Raises UsageError for one that is easily guessed."""
    if any(len(key) < _SHORTEST_KEY for key in keys):
        raise UsageError(f"an API key must have at least {_SHORTEST_KEY} characters")
    return list(keys)
