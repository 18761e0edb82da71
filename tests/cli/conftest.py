"""What the tests of commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.running import Command, Ran
from tests.tiny import save_tiny_llama

from paceline.cli import main


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline` in this process."""

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model with room for 256 tokens; nobody writes to it."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")
