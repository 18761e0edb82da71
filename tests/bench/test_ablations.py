"""Ablations: their grids, and that table and plot show what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from inspect import signature
from pathlib import Path as FilePath

import pytest
import torch
from typer.testing import CliRunner

from paceline.bench.ablations import (
    ABLATIONS,
    QUANTITIES,
    Ablation,
    check_matplotlib,
    draw,
    find_ablation,
    markdown,
    save,
)
from paceline.bench.comparison import Comparison
from paceline.bench.entries import Entry, LeftOut
from paceline.bench.metrics import MethodSummary, Summary, summarise
from paceline.bench.results import read_results
from paceline.bench.suites import Text
from paceline.bench.trial import PLAIN, Method
from paceline.cli import app, common
from paceline.cli.bench.measuring import ablate
from paceline.drafters import make_drafter
from paceline.errors import UsageError
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY
from tests.tiny import toy_session

SMALL = Ablation(
    "Small",
    "k",
    {"n=2": {1: "anpd:n=2,k=1", 3: "anpd:n=2,k=3"}, "n=3": {1: "anpd:n=3,k=1", 3: "anpd:n=3,k=3"}},
    ("speed-up", "triggers", "accepted tokens", "decoding steps"),
)


@pytest.fixture(scope="module")
def summary() -> Summary:
    session = toy_session()
    texts = [
        Text(suite, PromptRecord(f"{number}", ("round and round " * 3,)))
        for suite in ("one", "two")
        for number in range(2)
    ]
    contenders = [Method(name, session) for name in SMALL.methods]
    lines: list[Entry | LeftOut] = []
    Comparison(session, contenders, texts, Options(max_new_tokens=40)).run(lines)
    return summarise(lines)


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """Method -> cells, of the table below a heading."""
    lines = text.split(f"## {heading}", 1)[1].split("##", 1)[0].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "`" in line]
    return {row[0].strip("`"): row[1:] for row in cells}


def numbers(found: MethodSummary) -> list[str]:
    stats, texts = found.stats, found.texts
    values = [
        found.tokens_per_second,
        found.speedup,
        stats.tokens / stats.rounds,
        stats.accepted / stats.drafted if stats.drafted else 0,
        stats.triggers / texts,
        stats.accepted / texts,
        stats.rounds / texts,
    ]
    low, high = found.interval
    interval = f"{low:.2f}–{high:.2f}" if texts > 1 else "-"
    return [*(f"{value:.2f}" for value in values), interval]


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_grid_names_methods_that_exist_plain_first_and_once(name: str) -> None:
    ablation = find_ablation(name)
    assert ablation.methods[0] == PLAIN
    assert len(set(ablation.methods)) == len(ablation.methods)
    for method in ablation.methods:
        make_drafter(method)
    assert set(ablation.panels) <= set(QUANTITIES)


def test_grids_are_those_of_the_figures() -> None:
    bigrams = ABLATIONS["anpd-k"].lines["n=2"]
    assert list(bigrams) == list(range(1, 11))
    assert bigrams[4] == "anpd:n=2,k=4,branches=1"
    for label, tail in (("all levels", ""), ("one level", ",levels=one")):
        line = ABLATIONS["anpd-n"].lines[label]
        assert line == {n: f"anpd:n={n},k=7,branches=1{tail}" for n in range(2, 8)}
    lines = ABLATIONS["llma"].lines
    assert list(lines) == [f"n={n}" for n in range(1, 6)]
    assert list(lines["n=3"]) == [4, 6, 8, 10, 12, 14, 16, 18]
    assert lines["n=3"][18] == "llma:n=3,k=18"


@pytest.mark.parametrize("name", ABLATIONS)
def test_methods_propose_one_chain_of_k_as_the_papers_modules_do(name: str) -> None:
    budget = signature(ablate).parameters["budget"].default
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 1, 5, 1] * 3
    for line in ABLATIONS[name].lines.values():
        for value, method in line.items():
            longest = value if ABLATIONS[name].axis == "k" else 7
            drafter = make_drafter(method)
            drafter.start(TextStart(text[:-5], [text]))
            lengths = []
            for token in text[-5:]:
                tree = drafter.propose(budget)
                assert tree == tree.spine()
                lengths.append(len(tree))
                drafter.observe(said(token))
            assert max(lengths) <= longest < budget
            if "n=2," in method or "llma:n=1," in method:
                assert max(lengths) == longest  # these find something to go on with


def said(token: int) -> Round:
    return Round(0, EMPTY, torch.zeros(1, 8), Path((), (token,)))


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown ablation 'anpd'"):
        find_ablation("anpd")


def test_the_table_shows_what_was_measured(summary: Summary) -> None:
    text = markdown(SMALL, summary)
    groups = {"All texts": summary.overall} | {group.name: group for group in summary.groups}
    assert set(groups) == {"All texts", "one", "two"}
    for heading, group in groups.items():
        found = rows(text, heading)
        assert list(found) == SMALL.methods
        assert found == {name: numbers(group.methods[name]) for name in SMALL.methods}


def test_a_method_that_failed_stands_there_with_its_reason(summary: Summary) -> None:
    more = Ablation("More", "k", {"n=2": {**SMALL.lines["n=2"], 9: "anpd:k=9"}})
    assert rows(markdown(more, summary), "All texts")["anpd:k=9"][0] == "not run"
    (panel, _) = draw(more, summary.overall).axes
    assert list(panel.lines[0].get_xdata()) == [1, 3]


def test_a_single_prompt_has_no_interval_and_a_reason_stays_in_its_cell(summary: Summary) -> None:
    first = next(iter(summary.overall.methods.values()))
    own, plain = first.prompt_times
    one = replace(first, method="anpd:k=9", prompt_times=(own[:1], plain[:1]))
    overall = replace(
        summary.overall, methods={"anpd:k=9": one}, failed={"anpd:k=8": "either | or"}
    )
    more = Ablation("More", "k", {"n=2": {9: "anpd:k=9", 8: "anpd:k=8"}})
    text = markdown(more, replace(summary, overall=overall))
    assert rows(text, "All texts")["anpd:k=9"][-1] == "-"
    assert r"| `anpd:k=8` | either \| or | " in text


def test_the_plot_shows_what_was_measured(summary: Summary) -> None:
    panels = draw(SMALL, summary.overall).axes
    assert [panel.get_title() for panel in panels] == list(SMALL.panels)
    for panel, column in zip(panels, (1, 4, 5, 6), strict=True):
        assert [line.get_label() for line in panel.lines] == ["n=2", "n=3"]
        for line, (_, methods) in zip(panel.lines, SMALL.lines.items(), strict=True):
            assert list(line.get_xdata()) == [1, 3]
            drawn = [f"{value:.2f}" for value in line.get_ydata()]
            measured = [numbers(summary.overall.methods[name])[column] for name in methods.values()]
            assert drawn == measured


def test_plots_need_matplotlib_and_a_folder(
    monkeypatch: pytest.MonkeyPatch, summary: Summary, tmp_path: FilePath
) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        save(draw(SMALL, summary.overall), tmp_path / "missing" / "plot")
    monkeypatch.setattr("paceline.bench.ablations.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="need matplotlib"):
        check_matplotlib()


def test_the_command_writes_table_and_plots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    session = toy_session()
    monkeypatch.setattr(common, "open_session", lambda *args, **settings: session)
    monkeypatch.setitem(ABLATIONS, "small", SMALL)
    record = {"turns": ["round and round"]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(record))
    command = ["bench", "ablate", "small", "prompts", "--data", str(tmp_path)]
    command += ["--out", str(tmp_path / "out"), "--max-new-tokens", "20"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    stem = tmp_path / "out" / "ablate-small-smollm2-135m"
    files = {ending: stem.with_name(f"{stem.name}.{ending}") for ending in ("md", "svg", "png")}
    assert result.output.split()[-3:] == [str(path) for path in files.values()]
    header, lines = read_results(stem.with_name(f"{stem.name}.jsonl"))
    assert header["run"]["kind"] == "ablate"
    assert header["run"]["ablation"] == "small"
    found = summarise(lines).overall
    table = rows(files["md"].read_text(), "All texts")
    assert table == {name: numbers(found.methods[name]) for name in SMALL.methods}
    assert "<svg" in files["svg"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    # Once it is done, it is only drawn again.
    passes = session.target.passes
    assert CliRunner().invoke(app, [*command, "--resume"]).exit_code == 0
    assert session.target.passes == passes
