"""Every script of `benchmarks` starts, and says what it takes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from paceline.kernels.native import calls
from tests.bench.checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text("utf-8"))


def ended(script: Path, monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    """The exit code of a script."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, words)])
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(script), run_name="__main__")
    return ending.value.code


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(script, monkeypatch, "--help") == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("memory --json FILE --data FOLDER --methods none", "unknown method 'none'"),
        ("products --json FILE --formats Q4_0,Q9", "unknown format 'Q9': use one of Q4_0, "),
        ("products --json FILE --repeats 0", "--repeats takes whole numbers from 1 on"),
        ("products --json WRONG/x", "cannot write WRONG/x: "),
        ("replay --json WRONG --traces FOLDER --curve WRONG", "WRONG is read by this command"),
        ("replay --json WRONG --traces FOLDER --system FILE", "cannot read the file FILE"),
        ("passes --json FILE --widths 1 -1", "--widths takes whole numbers from 1 on"),
        ("passes --json FILE --engines none", "unknown engine 'none'"),
        ("replay --json FILE --traces FOLDER --curve FILE", "cannot read the file FILE"),
        ("replay --json FILE --traces FOLDER --curve WRONG", "WRONG holds no curve"),
        ("replay --json FILE --traces FOLDER --system FILE", "cannot read the file FILE"),
        ("ouroboros --data FOLDER --study none", "unknown study 'none': use one of fixed, "),
        (
            "ouroboros --data FOLDER --study fixed --limit 0",
            "--limit takes whole numbers from 1 on",
        ),
        (
            "serve --json FILE --data FOLDER --kinds poem",
            "unknown --kinds 'poem': use one of chat, ",
        ),
        ("gpu_answers --model m --out FOLDER --prompts FILE --licence MIT", "cannot read"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wrong.json").write_text("[]")
    places = {"FILE": "new.json", "FOLDER": "", "WRONG": "wrong.json"}
    for name, place in places.items():
        words, said = (text.replace(name, str(tmp_path / place)) for text in (words, said))
    script, *others = words.split()
    assert ended(BENCHMARKS / f"{script}.py", monkeypatch, *others) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "error: " in last and said in last
    assert not (tmp_path / "new.json").exists()


def test_products_need_the_c_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "unavailable", lambda: "it was not built")
    words = ["--json", tmp_path / "new.json", "--formats", "Q4_0", "--repeats", 1]
    assert ended(BENCHMARKS / "products.py", monkeypatch, *words) == 2
    assert "no products to measure: it was not built" in capsys.readouterr().err
