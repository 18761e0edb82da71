"""`paceline` in this process, as its user meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Standard error as one line, wherever the terminal breaks it."""
        return " ".join(self.err.split())


Command = Callable[..., Ran]
"""Words behind `paceline` -> what came of them."""
