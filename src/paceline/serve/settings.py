"""Settings of servers, their API keys and the names of their models, however they are started."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from os.path import abspath
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

KEY_VARIABLE = "PACELINE_API_KEY"
"""Environment variable that holds the keys, separated by spaces."""

_SHORTEST_KEY = 8

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+")


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server. Each is an option of `paceline serve`, and its help describes it.

    Raises UsageError for a number out of range.
    """

    max_batch: int = _setting(16, "Most texts written at once.")
    max_queue: int = _setting(64, "Most waiting requests; further ones get status 429.")
    max_tokens: int = _setting(0, "Most new tokens of a text; 0: as many as fit the context.")
    max_n: int = _setting(16, "Most texts of one request.")
    max_stop: int = _setting(32, "Most stop strings of one request.")
    max_references: int = _setting(16, "Most reference texts of one request.")
    max_body: int = _setting(4_000_000, "Bytes of the largest request.")
    time_limit: float = _setting(600.0, "Seconds after which a request is aborted.")
    body_limit: float = _setting(30.0, "Seconds within which the body of a request must arrive.")
    grace: float = _setting(30.0, "Seconds that a stopping server gives requests to finish.")
    log_prompts: bool = _setting(False, "Write prompts and answers into the log.")
    cors: str = _setting("", "Origin of web pages that may use this server; default: none.")

    def __post_init__(self) -> None:
        for each in fields(ServeSettings):
            value = getattr(self, each.name)
            least = 0 if each.name in ("max_tokens", "max_queue", "grace") else 1
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not value >= least:  # nor is NaN
                raise UsageError(f"{each.name} must be at least {least}, got {value}")
        if self.cors not in ("", "*", "null") and not _ORIGIN.fullmatch(self.cors):
            raise UsageError(
                "cors must be an origin as browsers send it, such as https://example.com, without "
                f"a path and in lower case, got {self.cors!r}"
            )


def public_name(model: str) -> str:
    """A model's name, without folders if it is a path, and as text that answers can hold."""
    name = Path(abspath(model)).name if Path(model).exists() else model
    return name.encode(errors="replace").decode()


def keys_of_environment() -> list[str]:
    """The keys in the variable; none if it is unset or empty. Raises UsageError for one that is
    easily guessed, and for blanks alone: a secret got lost."""
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


def public_method(method: object) -> str:
    """A session's method, without the folders of paths in it."""
    return re.sub(r"[^=:,+()]*[/\\]", "", method) if isinstance(method, str) else "custom"
