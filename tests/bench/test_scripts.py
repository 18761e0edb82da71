"""Every script of `benchmarks` starts, and says what it takes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.bench.checkout import ROOT

SCRIPTS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
