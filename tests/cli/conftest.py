"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Command, runner
from tests.tiny import save_tiny_llama


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline` in this process."""
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model with room for 256 tokens; nobody writes to it."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")
