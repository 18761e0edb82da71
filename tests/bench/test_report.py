"""What a report says of runs whose every figure is known beforehand."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.entries import Difference, Entry, LeftOut
from paceline.bench.report import write_report
from paceline.bench.report.folder import read_folder
from paceline.bench.report.sentences import basis, limits, verdicts
from paceline.bench.results import ResultFile
from paceline.cli import main
from paceline.errors import UsageError
from paceline.stats import SourceStats, Stats
from paceline.tables import Cell

TOKENS = 100
HOSTILE = "a|<script>alert('x')</script>"
RUN: dict[str, Any] = {
    "kind": "run",
    "methods": ["plain", "anpd"],
    "suites": ["copy", "chat"],
    "options": {"max_new_tokens": 100, "temperature": 0.0, "seed": 0},
    "repeats": 1,
    "model": {"name": "tiny-model", "fingerprint": "0123abcd"},
    "machine": {"processor": "A Processor", "threads": 2, "device": "cpu"},
    "versions": {"paceline": "0.1.0", "torch": "9.9.9"},
}
# Void elements have no end.
VOID = {"meta", "img", "br", "wbr"}


def trial(method: str, text: str, seconds: float, **more: Any) -> Entry:
    """100 tokens; `text` is "suite/prompt"."""
    suite, prompt = text.split("/", 1)
    stats = Stats(
        rounds=TOKENS,
        tokens=TOKENS,
        acceptance_histogram=Counter({1: TOKENS}),
        depth_histogram=Counter({0: TOKENS}),
        prefill_seconds=seconds / 4,
        target_seconds=seconds / 2,
    )
    given = {"suite": suite, "task": suite, "prompt": prompt, "turn": 0, "repeat": 0}
    given |= {"method": method, "prompt_tokens": 9, "tokens": TOKENS, "seconds": seconds}
    return Entry(**(given | {"stats": stats} | more))


def guesser(text: str, seconds: float, **more: Any) -> Entry:
    """40 rounds of 4 guesses: 20 gain 4 tokens, 20 gain one."""
    stats = Stats(
        rounds=40,
        tokens=TOKENS,
        drafted=160,
        accepted=60,
        acceptance_histogram=Counter({4: 20, 1: 20}),
        depth_histogram=Counter({4: 40}),
        prefill_seconds=seconds / 4,
        draft_seconds=seconds / 4,
        target_seconds=seconds / 4,
        commit_seconds=seconds / 8,
    )
    return trial("anpd", text, seconds, stats=stats, **more)


def write(
    folder: Path, lines: Iterable[Entry | LeftOut], name: str = "run-tiny", **asked: Any
) -> Path:
    """A result file with these lines."""
    header = {"command": "paceline bench run copy chat --out results", "run": {**RUN, **asked}}
    file = ResultFile(folder / f"{name}.jsonl", header)
    for line in lines:
        file.append(line)
    return file.path


def two_tasks() -> list[Entry]:
    """Copying is twice as fast with guesses, chatting is not: 0.8x on every text."""
    texts = {f"copy/{place}": 1.0 for place in range(3)} | {
        f"chat/{place}": 2.5 for place in (0, 1)
    }
    return [
        line
        for text, seconds in texts.items()
        for line in (trial("plain", text, 2.0), guesser(text, seconds))
    ]


def unguessed() -> list[Entry]:
    """Of which the fewest plots are drawn."""
    return [trial("plain", "copy/1", 4.0), trial("fast", "copy/1", 2.0)]


def report(folder: Path) -> tuple[str, str]:
    """HTML and Markdown."""
    assert write_report(folder) == [folder / "report.html", folder / "report.md"]
    return read(folder)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of `two_tasks`, to be read only."""
    folder = tmp_path_factory.mktemp("known")
    write(folder, two_tasks())
    report(folder)
    return folder


def read(folder: Path) -> tuple[str, str]:
    """The HTML and the Markdown that are there."""
    return (folder / "report.html").read_text("utf-8"), (folder / "report.md").read_text("utf-8")


def words_of(page: str) -> str:
    """What a reader of the page sees, without its plots."""
    found: list[str] = []

    class Reader(HTMLParser):
        inside = 0

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.inside += tag in ("style", "svg")

        def handle_endtag(self, tag: str) -> None:
            self.inside -= tag in ("style", "svg")

        def handle_data(self, data: str) -> None:
            if not self.inside:
                found.append(data)

    Reader().feed(page)
    return " ".join("".join(found).split())


def sentences(folder: Path) -> dict[str, str]:
    """Method -> all that is said about it."""
    (run,) = read_folder(folder).runs
    return {each.method: " ".join(each.sentences) for each in verdicts(run)}


def test_the_sentences_state_exactly_the_known_numbers(tmp_path: Path) -> None:
    write(tmp_path, two_tasks())
    # 500 tokens in 3 * 1 + 2 * 2.5 = 8 seconds, against 10 of plain decoding; resampled texts are
    # between all of the slow kind, 0.8, and all of the fast one, 2.
    (run,) = read_folder(tmp_path).runs
    low, high = run.summary.overall.methods["anpd"].interval
    assert basis(run) == (
        "5 texts of 2 tasks, 1 trial per text and method, max new tokens 100, temperature 0.0, "
        "seed 0."
    )
    assert sentences(tmp_path)["anpd"] == (
        "On 5 texts of 2 tasks, anpd wrote the same tokens as plain decoding everywhere and ran at "
        f"1.25x its speed (95 % interval {low:.2f} to {high:.2f}): the interval includes 1, not "
        "distinguishable from plain decoding. "
        "Fastest task: copy, 2.00x (2.00 to 2.00, 3 texts); slowest: chat, 0.80x (0.80 to "
        "0.80, 2 texts). "
        "Slower than plain decoding on 1 of 2 tasks: chat (on fewer than 5 prompts)."
    )
    assert limits(run) == [
        "No output of plain decoding loops (a fifth or more of its tokens in runs of twenty that "
        "occur more than once).",
        "Tasks whose intervals come from fewer than 5 prompts: copy (3), chat (2).",
    ]


def test_one_text_has_no_interval_and_is_not_judged(tmp_path: Path) -> None:
    write(tmp_path, [trial("plain", "copy/0", 2.0), guesser("copy/0", 4.0)])
    assert sentences(tmp_path)["anpd"] == (
        "On 1 text of 1 task, anpd wrote the same tokens as plain decoding everywhere and ran at "
        "0.50x its speed (one prompt, no interval)."
    )


def test_cautions_count_prompts_as_intervals_do(tmp_path: Path) -> None:
    """Six turns of two conversations, six of one, and five texts of their own."""
    texts = [("talk", str(turn % 2), turn // 2) for turn in range(6)]
    texts += [("long", "0", turn) for turn in range(6)]
    texts += [("chat", str(place), 0) for place in range(5)]
    lines: list[Entry | LeftOut] = []
    for suite, prompt, turn in texts:
        name = f"{suite}/{prompt}"
        lines += [trial("plain", name, 2.0, turn=turn), guesser(name, 4.0, turn=turn)]
    write(tmp_path, lines)
    (run,) = read_folder(tmp_path).runs
    said = sentences(tmp_path)["anpd"]
    assert (
        "Slower than plain decoding on 2 of 3 tasks: talk, chat (1 of them on fewer than 5 " in said
    )
    assert "slowest: chat, 0.50x (0.50 to 0.50, 5 texts)" in said
    assert limits(run)[-1] == "Tasks whose intervals come from fewer than 5 prompts: talk (2)."


def test_a_conversation_alone_has_no_interval(tmp_path: Path) -> None:
    lines = [
        line
        for turn in range(6)
        for line in (trial("plain", "a/0", 2.0, turn=turn), guesser("a/0", 1.0, turn=turn))
    ]
    lines += [trial("plain", "b/0", 2.0, loop_share=0.5), guesser("b/0", 1.0)]
    write(tmp_path, lines)
    (run,) = read_folder(tmp_path).runs
    said = sentences(tmp_path)["anpd"]
    assert "Fastest task: a, 2.00x (one prompt, no interval)" in said
    assert "Without the texts that loop: 2.00x (one prompt, no interval) on 6 texts." in said
    assert not any("fewer than" in each for each in limits(run))


def test_an_interval_that_rounds_to_one_is_not_called_faster(tmp_path: Path) -> None:
    texts = ("copy/0", "copy/1")
    lines = [(trial("plain", text, 2.006), guesser(text, 2.0)) for text in texts]
    write(tmp_path, [line for pair in lines for line in pair])
    (verdict,) = verdicts(read_folder(tmp_path).runs[0])
    assert verdict.speedup == Cell("1.00x", "1.00 to 1.00", "even")


def test_an_ablation_without_trials_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, two_tasks())
    left = write(tmp_path, [], name="ablate-small-tiny")
    notes: list[str] = []
    found = read_folder(tmp_path, notes.append)
    assert (len(found.runs), len(found.ablations)) == (1, 0)
    assert notes == [
        f"{left} was skipped: {left} holds no trial of plain decoding: there is nothing to compare with"
    ]


def test_methods_that_an_interrupted_run_did_not_reach_are_named(tmp_path: Path) -> None:
    lines = [trial("plain", "copy/0", 2.0), guesser("copy/0", 1.0)]
    write(tmp_path, lines, methods=["plain", "anpd", "eagle", "auto"])
    assert "The run was interrupted before any trial of eagle, auto." in report(tmp_path)[1]


def test_what_went_wrong_is_said_in_both(tmp_path: Path) -> None:
    lines: list[Entry | LeftOut] = []
    for place in range(4):
        text = f"copy/{place}"
        lines += [trial("plain", text, 2.0, loop_share=0.5 if place == 3 else 0.0)]
        lines += [guesser(text, 4.0)]
    parted = Difference(17, 31, 45, 0.0025)
    lines[3] = guesser("copy/1", 4.0, output=(1, 2), difference=parted)
    lines[5] = guesser("copy/2", 0.0, error="RuntimeError: no room")
    lines += [LeftOut("copy", "copy", "long", 1, "it does not fit")]
    write(tmp_path, lines)
    page, markdown = report(tmp_path)
    for text in (words_of(page), markdown):
        for words in (
            "On the 3 of 4 texts that count for it, anpd ran at 0.50x the speed of plain decoding "
            "(95 % interval 0.50 to 0.50): slower.",
            "Its texts differ from those of plain decoding on 1 of 3 texts; the largest logit gap "
            "is 0.0025.",
            "It failed on 1 text, not counted for it; first reason: RuntimeError: no room.",
            "Without the texts that loop: 0.50x (0.50 to 0.50) on 2 texts.",
            "The output of plain decoding loops on 1 of 4 texts",
            "1 text was left out: it does not fit (1).",
            "Where anpd differs from plain decoding",
            "copy/long, turn 2",
            "no, 1 text",
        ):
            assert words in text
    assert "| copy/1 | 17 | 31 | 45 | 0.0025 |" in markdown
    assert "| anpd | copy/2 | RuntimeError: no room |" in markdown
    assert "| copy/long, turn 2 | copy | it does not fit |" in markdown
    # 3 of 4 texts do not loop, and on 2 of them the method came through.
    assert "**Without looping outputs: 3 texts**" in markdown


def test_lossy_texts_are_called_that_and_not_compared(tmp_path: Path) -> None:
    fast = trial("fast", "chat/a", 1.0, output=(1, 2), lossy=True)
    write(tmp_path, [trial("plain", "chat/a", 2.0), fast])
    said = sentences(tmp_path)["fast"]
    assert "its texts are lossy and were not compared with those of plain decoding" in said
    assert "wrote the same tokens" not in said
    _, markdown = report(tmp_path)
    rows = [line for line in markdown.splitlines() if line.startswith("| fast")]
    assert any("| lossy |" in row for row in rows)


def test_a_method_that_never_came_through_is_there(tmp_path: Path) -> None:
    lines = [trial("plain", "copy/0", 2.0), trial("anpd", "copy/0", 0, error="OSError: disk")]
    write(tmp_path, lines)
    assert sentences(tmp_path)["anpd"] == "anpd finished no text: OSError: disk."
    page, markdown = report(tmp_path)
    for text in (words_of(page), markdown):
        assert "anpd finished no text: OSError: disk." in text
    assert "| anpd | every text | OSError: disk |" in markdown


def test_plain_decoding_that_never_came_through_leaves_nothing_to_compare(tmp_path: Path) -> None:
    write(tmp_path, [trial("plain", "copy/0", 0, error="OSError: disk"), guesser("copy/0", 1.0)])
    page, markdown = report(tmp_path)
    for text in (words_of(page), markdown):
        assert "Plain decoding finished no text: OSError: disk." in text
        assert "All methods" not in text


def test_trials_that_are_missing_are_counted(tmp_path: Path) -> None:
    write(tmp_path, [*two_tasks(), trial("plain", "chat/9", 2.0)])
    assert "There is no trial of it on 1 text." in sentences(tmp_path)["anpd"]


def test_rivals_are_told_apart_and_their_texts_compared(tmp_path: Path) -> None:
    other = {"output": (5,), "difference": Difference(0, 1, 5, 0.75)}
    lines = two_tasks()
    for entry in two_tasks()[::2]:
        lines.append(trial("transformers", f"{entry.suite}/{entry.prompt}", 4.0))
        lines.append(trial("llama.cpp", f"{entry.suite}/{entry.prompt}", 1.0, **other))
    write(tmp_path, lines)
    told = sentences(tmp_path)
    assert told["transformers"].startswith(
        "On 5 texts of 2 tasks, transformers wrote the same tokens as plain decoding everywhere "
        "and ran at 0.50x its speed (95 % interval 0.50 to 0.50): slower. "
    )
    assert (
        "Slower than plain decoding on all 2 tasks (each on fewer than 5 prompts)."
        in told["transformers"]
    )
    assert (
        "Its texts differ from those of plain decoding on 5 of 5 texts; the largest logit gap is "
        "0.75." in told["llama.cpp"]
    )
    labels = {each.method: each.label for each in verdicts(read_folder(tmp_path).runs[0])}
    assert labels == {"anpd": "", "transformers": "other software", "llama.cpp": "other software"}


def test_tables_hold_the_known_numbers(known: Path) -> None:
    _, markdown = read(known)
    rows = [line for line in markdown.splitlines() if line.startswith("| anpd |")]
    # 500 tokens in 8 seconds; a quarter of them reads the prompt; 100 tokens in 40 rounds.
    assert re.match(r"\| anpd \| 5 \| 62\.5 \| 1\.25x \(.*\) \| 1\.25x \| ", rows[0])
    assert "| 2.50 | 38% | - | 0% | yes | 0 |" in rows[0]
    # 16 ms per token: a quarter each for prompt, guesses and passes, an eighth for commits.
    assert rows[1] == "| anpd | 4.00 | 4.00 | 4.00 | 2.00 | 2.00 | 16.00 |"
    assert rows[2] == "| anpd | 200 | 100% | 2.50 | 2.5 | 4 | 50% |"
    assert rows[3] == "| anpd | 50% | 50% | 50% | 0% |"
    assert "| copy | 3 | 0 | 2.00x (2.00 to 2.00) |" in markdown
    assert "| chat | 2 | 0 | 0.80x (0.80 to 0.80) |" in markdown


def test_sources_are_shown_with_what_they_did(tmp_path: Path) -> None:
    def united(text: str) -> Entry:
        entry = guesser(text, 1.0)
        entry.stats.sources = {
            "llma": SourceStats(40, 40, 120, 90, 50, 20, 0.125),
            "medusa": SourceStats(40, 10, 70, 60, 30, 10, 0.25),
        }
        return entry

    write(
        tmp_path,
        [
            line
            for text in ("copy/0", "copy/1")
            for line in (trial("plain", text, 2.0), united(text))
        ],
    )
    page, markdown = report(tmp_path)
    # Of twice 7/8 of a second, 40 rounds each.
    assert "| anpd | llma | 100% | 240 | 180 | 100 | 40 | 3.12 | 14% |" in markdown
    assert "| anpd | medusa | 25% | 140 | 120 | 60 | 20 | 6.25 | 29% |" in markdown
    assert "guesses by source" in words_of(page)


def test_there_is_no_word_about_sources_where_no_method_has_any(known: Path) -> None:
    page, markdown = read(known)
    assert "by source" not in page + markdown


def test_the_way_to_repeat_it_is_there(known: Path) -> None:
    page, markdown = read(known)
    for text in (words_of(page), markdown):
        assert "paceline bench run copy chat --out results" in text
        for words in ("A Processor", "torch 9.9.9", "fingerprint 0123abcd", "seed 0"):
            assert words in text


def test_the_page_is_whole_and_asks_for_nothing_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, two_tasks())
    (tmp_path / "tune.json").write_text(json.dumps(tuned()))
    page, markdown = report(tmp_path)
    open_tags: list[str] = []
    ids: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in VOID:
                open_tags.append(tag)
            for name, value in attrs:
                assert not name.startswith("on")
                if name == "id":
                    ids.append(value or "")
                if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                    assert value is not None and value.startswith(("#", "data:"))

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in VOID:
                assert open_tags.pop() == tag

    Checker().feed(page)
    assert open_tags == []
    assert [name for name, often in Counter(ids).items() if often > 1] == []
    assert not re.search(r"https?://|@import|<script|url\((?!#)", page)
    assert page.count("<svg ") == len(re.findall(r"!\[.*?\]\(plots/", markdown)) == 6


def test_plots_are_files_of_their_own_as_well(known: Path) -> None:
    _, markdown = read(known)
    named = re.findall(r"\]\((plots/[^)]*\.svg)\)", markdown)
    assert sorted(named) == sorted(f"plots/{path.name}" for path in (known / "plots").iterdir())
    for name in named:
        text = (known / name).read_text(encoding="utf-8")
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
        assert "currentColor" in text and "#010203" not in text
        assert "prefers-color-scheme" in text


def test_hostile_names_and_errors_stay_words(tmp_path: Path) -> None:
    lines: list[Entry | LeftOut] = []
    for place in range(2):
        text = f"{HOSTILE}$_^/{HOSTILE} {place}"
        lines += [trial("plain", text, 2.0), guesser(text, 1.0)]
    lines += [trial("plain", "copy/0", 2.0), trial("pld", "copy/0", 0, error=f"**{HOSTILE}**")]
    lines += [LeftOut("copy", HOSTILE, HOSTILE, 0, HOSTILE)]
    write(tmp_path, lines, suites=[HOSTILE])
    page, markdown = report(tmp_path)
    for text in (page, markdown):
        assert "<script" not in text
    assert HOSTILE in words_of(page)
    assert "| a\\|&lt;script>alert('x')&lt;/script> |" in markdown
    assert r"\*\*a\|&lt;script>" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| pld | ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {13, 4}
    for plot in (tmp_path / "plots").iterdir():
        ET.parse(plot)  # noqa: S314


def test_a_simulation_says_that_it_followed_recorded_texts(tmp_path: Path) -> None:
    write(tmp_path, two_tasks(), "simulate-tiny", kind="simulate")
    _, markdown = report(tmp_path)
    assert "## tiny-model, simulated" in markdown
    assert (
        "The tokens are those of recorded texts, which every method was forced to follow"
        in markdown
    )
    assert "anpd ran at 1.25x the speed of plain decoding" in markdown
    assert "wrote the same tokens" not in markdown


def test_an_ablation_brings_its_tables_and_its_picture(tmp_path: Path) -> None:
    lines = [*two_tasks(), LeftOut("copy", "copy", "long", 0, "too long")]
    write(tmp_path, lines, "ablate-anpd-k-tiny", kind="ablate", ablation="anpd-k")
    (tmp_path / "ablate-anpd-k-tiny.svg").write_text("<svg><script>alert(1)</script></svg>")
    page, markdown = report(tmp_path)
    assert '<img alt="ablate-anpd-k-tiny.svg" src="data:image/svg+xml;base64,' in page
    assert "<script" not in page
    assert "](<ablate-anpd-k-tiny.svg>)" in markdown
    for text in (words_of(page), markdown):
        assert "ANPD: longest draft K" in text and "All texts (" in text
        assert "Left out: copy/long: too long" in text
    (row, *_) = re.findall(r"^\| anpd \| .*", markdown, re.MULTILINE)
    assert "| 1.25 |" in row


def tuned(name: str = "tiny-model") -> dict[str, Any]:
    """As `paceline tune --json` writes it."""
    return {
        "model": {"name": name, "fingerprint": "0123abcd"},
        "curve": [
            {"width": width, "context": context, "milliseconds": width + context / 100}
            for width in (1, 2, 4)
            for context in (100, 1000)
        ],
        "floor_milliseconds": 1.5,
        "bandwidth_gb_per_s": 40.0,
        "floor_share": 0.75,
    }


def test_a_cost_curve_joins_the_run_of_its_model(tmp_path: Path) -> None:
    write(tmp_path, two_tasks())
    (tmp_path / "tune-a.json").write_text(json.dumps(tuned()))
    (tmp_path / "tune-b.json").write_text(json.dumps(tuned("another")))
    (tmp_path / "compare.json").write_text("[1, 2]")
    _, markdown = report(tmp_path)
    assert markdown.count("### Cost of a pass") == 2
    assert markdown.index("tune-a-cost.svg") < markdown.index("## another, cost")
    assert "| 4 | 5.00 | 14.00 | 2.50x |" in markdown
    assert "Reading all weights once takes 1.50 ms at 40.0 GB/s, the floor." in markdown


def test_the_command_says_where_the_report_is_and_skips_json_that_is_none_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other files may be anybody's; the results are reported all the same."""
    write(tmp_path, unguessed())
    others = [tmp_path / f"other-{number}.json" for number in range(4)]
    for other, content in zip(others, (b"{torn", b"[" * 100_000, b"caf\xe9", b""), strict=True):
        other.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    written, said = capsys.readouterr()
    assert written == f"{tmp_path}/report.html\n{tmp_path}/report.md\n"
    assert (tmp_path / "report.md").exists()
    notes = [f"{other} was skipped: it is not JSON in UTF-8" for other in others]
    assert " ".join(said.split()) == " ".join(notes)


def test_a_tuning_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(json.dumps(tuned()), encoding="utf-8-sig")
    assert [each.floor for each in read_folder(tmp_path).tunings] == [1.5]


def test_a_file_of_any_name_has_a_report_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path, unguessed(), "published-tiny")
    write(tmp_path, unguessed(), "run-other")
    page, markdown = write_report(file)
    assert page.parent == markdown.parent == tmp_path / "published-tiny"
    assert markdown.read_text("utf-8").count("### All methods") == 1


def test_a_file_without_a_suffix_has_a_report_beside_it(tmp_path: Path) -> None:
    file = write(tmp_path, unguessed()).rename(tmp_path / "mine")
    page, _ = write_report(file)
    assert page.parent == tmp_path / "mine.report"


def test_names_that_differ_in_a_sign_have_plots_of_their_own(tmp_path: Path) -> None:
    for name in ("run-a_b", "run-a-b", "run-a b"):
        write(tmp_path, unguessed(), name)
    page, markdown = report(tmp_path)
    chapters = re.findall(r'<article id="([^"]*)"', page)
    assert len({*chapters}) == len(chapters) == 4 and "run-a-b" in chapters
    plots = re.findall(r"\]\(plots/([^)]*)\)", markdown)
    assert {*plots} == {path.name for path in (tmp_path / "plots").iterdir()}
    assert len({*plots}) == len(plots)


def test_a_method_in_a_private_module_is_drawn(tmp_path: Path) -> None:
    fast = trial("_mine:Fast", "copy/0", 1.0)
    write(tmp_path, [trial("plain", "copy/0", 2.0), fast])
    assert "_mine:Fast" in words_of(report(tmp_path)[0])


def test_names_that_are_no_text_are_reported(tmp_path: Path) -> None:
    write(tmp_path, unguessed(), suites=["caf\udce9"])
    page, markdown = report(tmp_path)
    assert "caf?" in page and "caf?" in markdown


def test_tasks_and_methods_that_are_no_text_are_drawn(tmp_path: Path) -> None:
    lines: list[Entry | LeftOut] = []
    for task in ("\ud800", "\udfff"):
        lines += [
            trial("plain", f"copy/{ord(task)}", 2.0, task=task),
            replace(guesser(f"copy/{ord(task)}", 1.0, task=task), method="\ud801"),
        ]
    write(tmp_path, lines)
    _, markdown = report(tmp_path)
    assert "copy/?" in markdown


def test_what_cannot_be_reported_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "notes.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"notes\.jsonl"):
        write_report(tmp_path / "notes.jsonl")
    with pytest.raises(UsageError, match="holds no results"):
        write_report(tmp_path)
    path = write(tmp_path, two_tasks())
    whole = path.read_text()
    path.write_text(f"{whole}{{torn\n{whole}")
    with pytest.raises(UsageError, match=r"line 12 is damaged"):
        write_report(tmp_path)
    path.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(UsageError, match=r"run-tiny\.jsonl holds no trial of plain decoding"):
        write_report(tmp_path)
    path.write_text(whole)
    for changes in ({"curve": [{"width": 0}]}, {"floor_milliseconds": 10**400}):
        (tmp_path / "tune.json").write_text(json.dumps(tuned() | changes))
        with pytest.raises(UsageError, match=r"tune\.json is damaged"):
            write_report(tmp_path)
    (tmp_path / "tune.json").unlink()
    (tmp_path / "tune.json").mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*tune\.json: Is a directory"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_software_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    write(tmp_path, two_tasks())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as raised:
        write_report(tmp_path)
    assert str(raised.value) == f"the report needs {package}: pip install 'paceline[bench]'"
