"""A folder of prepared models that is this test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where models are kept prepared; nothing is there yet."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"
