"""`paceline` in this process, as its user meets it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from paceline.cli import main


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
"""Words after `paceline` -> what came of them."""


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `paceline` in this process."""

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run
