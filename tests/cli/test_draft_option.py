"""`--draft-model`: the short way to a draft model, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.tiny import save_tiny_llama

from paceline.cli import main
from paceline.cli.bench.shared import Contenders
from paceline.cli.groups import Choice
from paceline.drafters import add_draft
from paceline.errors import UsageError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("method", "draft", "expected"),
    [
        (None, None, "auto"),
        ("llma:n=2", None, "llma:n=2"),
        (None, "a/b", "speculative:draft=a/b"),
        ("speculative", "a/b", "speculative:draft=a/b"),
        (
            "speculative:inner=(anpd:n=3,k=4),length=2",
            "x,y",
            "speculative:draft=(x,y),inner=(anpd:n=3,k=4),length=2",
        ),
    ],
)
def test_it_becomes_a_setting(method: str | None, draft: str | None, expected: str) -> None:
    assert Choice(method=method, draft_model=draft).chosen == expected


def test_it_is_refused_where_it_says_nothing() -> None:
    with pytest.raises(UsageError, match="'speculative:draft=a' already names its draft model"):
        _ = Choice(method="speculative:draft=a", draft_model="b").chosen
    with pytest.raises(UsageError) as caught:
        _ = Choice(method="anpd:n=4,k=5", draft_model="b").chosen
    assert str(caught.value) == (
        "method anpd:n=4,k=5 takes no draft model: leave out --draft-model, or let the method "
        "draft for the draft model: --method speculative:inner=(anpd:n=4,k=5)"
    )
    with pytest.raises(UsageError, match="unknown method 'anpx'"):
        _ = Choice(method="anpx", draft_model="b").chosen
    assert add_draft("plain", "b") is None


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ("anpd", ["plain", "anpd", "speculative:draft=x"]),
        (
            "speculative:length=2,transformers,anpd",
            ["plain", "speculative:draft=x,length=2", "transformers", "anpd"],
        ),
    ],
)
def test_in_a_comparison_it_goes_to_the_methods_that_take_one(
    methods: str, expected: list[str]
) -> None:
    assert Contenders(methods, "x").names() == expected
    assert Contenders("speculative").names() == ["plain", "speculative"]  # the shipped one


def test_the_commands_take_it(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = []
    for extra in (["--method", "plain"], ["--draft-model", tiny]):
        assert run(monkeypatch, "generate", "hello", "-m", tiny, "-n", 12, *extra) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    path = tmp_path / "report.json"
    words = ["compare", "hello", "-m", tiny, "-n", 8, "--repeats", 1, "--methods", "pld"]
    assert run(monkeypatch, *words, "--draft-model", tiny, "--json", path) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    names = [entry["method"] for entry in report["methods"]]
    assert names == ["plain", "pld", f"speculative:draft={tiny}"]
    assert all(entry["identical"] for entry in report["methods"])


def test_without_a_draft_model_the_way_out_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "generate", "hello", "-m", tiny, "--method", "speculative") == 2
    assert "name one with --draft-model NAME or draft=NAME" in " ".join(
        capsys.readouterr().err.split()
    )
