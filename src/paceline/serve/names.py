"""Model names and API keys of servers, however they are started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os.path import abspath
from pathlib import Path

from paceline.errors import UsageError

__all__ = ["KEY_VARIABLE", "checked_keys", "keys_of_environment", "public_name"]

KEY_VARIABLE = "PACELINE_API_KEY"
"""Environment variable that holds the keys, separated by spaces."""

_SHORTEST_KEY = 8


def public_name(model: str) -> str:
    """A model's name, without folders if it is a path."""
    return Path(abspath(model)).name if Path(model).exists() else model


def keys_of_environment() -> list[str]:
    """The keys in the variable; none if it is unset or empty.

    Raises UsageError for one that is easily guessed, and for blanks alone: a secret got lost.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    keys = value.split()
    if value and not keys:
        raise UsageError(f"{KEY_VARIABLE} holds blanks and no key: set keys, or unset it")
    return checked_keys(keys)


def checked_keys(keys: Sequence[str]) -> list[str]:
    """The keys. Raises UsageError for one that is easily guessed."""
    if any(len(key) < _SHORTEST_KEY for key in keys):
        raise UsageError(f"an API key must have at least {_SHORTEST_KEY} characters")
    return list(keys)
