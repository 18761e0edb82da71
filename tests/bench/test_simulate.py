"""Simulation over recorded outputs: the text is the recorded one, the passes are the target's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paceline import drafters
from paceline.bench.comparison import Comparison
from paceline.bench.entries import Entry, LeftOut
from paceline.bench.metrics import summarise
from paceline.bench.results import ResultFile
from paceline.bench.traces import Recording, TraceRecord
from paceline.bench.trial import PLAIN, Method, Request
from paceline.cli import app, common
from paceline.drafters import MethodSpec, make_drafter
from paceline.loop import DEFAULT_BUDGET
from paceline.options import Options
from paceline.records import Path, Round, TextStart
from paceline.session import Session
from paceline.tree import ROOT
from tests.helpers import RandomTrees
from tests.tiny import byte_tokenizer, toy_session

TALK = (
    ("user", "Say it twice: round and round."),
    ("assistant", "Round and round, round and round it goes."),
    ("user", "And again!"),
    ("assistant", "Round and round it goes, round and round."),
)
CALLS = (
    ("system", "You find books."),
    ("user", "Where is the blue book?"),
    ("assistant", '[{"name": "find", "arguments": {"title": "blue"}}]'),
    ("tool", '{"title": "blue", "shelf": "blue 7"}'),
    ("assistant", "The blue book is on the shelf blue 7."),
)
METHODS = ["plain", "anpd", "anpd:branches=3", "llma", "pld"]
HOSTILE = "random:vocab_size=260,beyond=5"


@dataclass(frozen=True)
class RandomSettings:
    vocab_size: int = 16
    beyond: int = 0


RANDOM = MethodSpec("random", RandomSettings, lambda settings: RandomTrees(**vars(settings)))


@pytest.fixture(autouse=True)
def _random_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter with trees of any shape, by the name "random"."""
    monkeypatch.setitem(drafters.METHODS, "random", RANDOM)


def recording(name: str, messages: Any = TALK, *references: str) -> Recording:
    return Recording("trace", TraceRecord(name, messages, name, "chat", references))


def requests(session: Session, text: Recording, **options: Any) -> list[Request]:
    return list(text.requests(session, Options(**options), lambda turn: None))


def run(
    session: Session, texts: Sequence[Recording], methods: list[str], **options: Any
) -> list[Entry | LeftOut]:
    contenders = [Method(name, session) for name in methods]
    sink: list[Entry | LeftOut] = []
    Comparison(session, contenders, texts, Options(**options)).run(sink)
    return sink


def entries(sink: Any) -> list[Entry]:
    found = [line for line in sink if isinstance(line, Entry)]
    assert [line.error for line in found] == [""] * len(found)
    return found


def follow(name: str, request: Request) -> list[int]:
    """Tokens gained by each round of a drafter that is told the recorded text, without a model."""
    drafter, text = make_drafter(name), list(request.ids)
    end = [*text, *request.recorded]
    drafter.start(TextStart(text, request.references))
    gains = []
    while len(text) < len(end):
        tree = drafter.propose(DEFAULT_BUDGET)
        nodes: list[int] = []
        node, said = ROOT, [end[len(text)]]
        while len(text) + len(said) < len(end):
            child = tree.children.get(node, {}).get(said[-1])
            if child is None:
                break
            nodes.append(node := child)
            said.append(end[len(text) + len(said)])
        text += said
        gains.append(len(said))
        drafter.observe(Round(0, tree, torch.empty(0), Path(tuple(nodes), tuple(said))))
    return gains


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [*METHODS, HOSTILE])
def test_every_method_writes_the_recorded_text(method: str, temperature: float) -> None:
    session = toy_session()
    for text in (recording("talk"), recording("calls", CALLS, "blue 7")):
        for request, output in zip(
            requests(session, text, temperature=temperature), text.record.outputs, strict=True
        ):
            before = session.target.passes
            trial = Method(method, session).generate(request)
            assert session.tokenizer.decode(trial.output) == output
            assert trial.output == session.encode_references([output])[0]
            # Each round is a pass of the target; nothing is taken from the record instead.
            assert session.target.passes - before == trial.stats.rounds
            assert trial.stats.tokens == len(trial.output)


@pytest.mark.parametrize("limit", [1, 9, 1000])
@pytest.mark.parametrize("method", [*METHODS, HOSTILE])
def test_acceptance_is_that_of_a_simulation_without_a_model(method: str, limit: int) -> None:
    session = toy_session()
    options = {"max_new_tokens": limit, "budget": DEFAULT_BUDGET}
    for request in requests(session, recording("talk", TALK, "round we go"), **options):
        stats = Method(method, session).generate(request).stats
        gains = follow(method, request)
        assert stats.rounds == len(gains)
        assert sorted(stats.acceptance_histogram.elements()) == sorted(gains)


def test_drafts_are_accepted_at_all() -> None:
    session = toy_session(budget=DEFAULT_BUDGET)
    first = run(session, [recording("talk")], METHODS)
    gains = {method: found.stats for method, found in summarise(first).overall.methods.items()}
    assert gains[PLAIN].mean_acceptance_length == 1
    for method in METHODS[1:]:
        assert gains[method].mean_acceptance_length > 1.3


def test_prompts_hold_what_was_recorded_before() -> None:
    session = toy_session()
    first, second = requests(session, recording("talk"))
    assert list(first.ids) == session.encode([{"role": "user", "content": TALK[0][1]}])
    said = [{"role": role, "content": content} for role, content in TALK[:3]]
    assert list(second.ids) == session.encode(said)
    _, answered = requests(session, recording("calls", CALLS))
    prompt = session.tokenizer.decode(answered.ids)
    assert '<tool>{"title": "blue", "shelf": "blue 7"}\n<assistant>' in prompt


def test_without_a_chat_template_the_messages_are_one_text() -> None:
    session = toy_session()
    session.tokenizer = byte_tokenizer(template=None)
    first, second = requests(session, recording("talk"))
    assert session.tokenizer.decode(first.ids) == f"{TALK[0][1]}\n\n"
    assert session.tokenizer.decode(second.ids) == (
        f"{TALK[0][1]}\n\n{TALK[1][1]}\n\n{TALK[2][1]}\n\n"
    )


def test_a_limit_cuts_the_recorded_text_and_an_end_token_does_not() -> None:
    session = toy_session()
    (first, _) = requests(session, recording("talk"), max_new_tokens=5)
    assert Method("anpd", session).generate(first).output == session.encode("Round")
    end = session.eos_ids[0]
    stopped = replace(first, recorded=[*first.recorded[:2], end, *first.recorded[2:]])
    trial = Method("anpd", session).generate(
        replace(stopped, options=first.options.with_(max_new_tokens=6))
    )
    assert trial.output == stopped.recorded


def test_after_the_record_the_model_speaks_for_itself() -> None:
    """A warm-up may ask for more than was recorded."""
    session = toy_session()
    first, _ = requests(session, recording("talk"), max_new_tokens=3)
    longer = replace(first, options=first.options.with_(max_new_tokens=8))
    trial = Method(PLAIN, session).generate(longer)
    plain = session.generate([*first.ids, *trial.output[:3]], max_new_tokens=5, ignore_eos=True)
    assert trial.output[3:] == plain.tokens


def test_a_contest_over_recordings() -> None:
    session = toy_session()
    texts = [recording("talk"), recording("calls", CALLS)]
    comparison = Comparison(session, [Method(name, session) for name in METHODS], texts, Options())
    assert comparison.trials == 4 * len(METHODS)
    sink: list[Entry | LeftOut] = []
    comparison.run(sink)
    found = entries(sink)
    assert [entry.key for entry in found if entry.method == PLAIN] == [
        ("trace", "talk", 0),
        ("trace", "talk", 1),
        ("trace", "calls", 0),
        ("trace", "calls", 1),
    ]
    for entry in found:
        assert entry.difference is None
        # What the others wrote is what plain decoding wrote, so it stands there once.
        assert (entry.output is None) == (entry.method != PLAIN)
    assert summarise(found).overall.methods["llma"].identical


def test_what_does_not_fit_or_is_refused_is_left_out() -> None:
    session = toy_session()
    session.tokenizer = byte_tokenizer(
        "{% for message in messages %}{% if message.role == 'tool' %}"
        "{{ raise_exception('no tools here') }}{% endif %}{{ message.content }}{% endfor %}"
    )
    session.target.max_context = 100
    sink = run(session, [recording("talk"), recording("calls", CALLS)], ["plain", "anpd"])
    reasons = [(line.prompt, line.turn, line.reason) for line in sink if isinstance(line, LeftOut)]
    assert [reason[:2] for reason in reasons] == [("talk", 1), ("calls", 1)]
    assert "do not fit into the model's context" in reasons[0][2]
    assert "no tools here" in reasons[1][2]
    assert len(entries(sink)) == 4


def test_an_interrupted_simulation_goes_on(tmp_path: File) -> None:
    session = toy_session()
    texts = [recording("talk"), recording("calls", CALLS)]
    contenders = [Method(name, session) for name in ("plain", "anpd")]
    comparison = Comparison(session, contenders, texts, Options(), repeats=2)
    whole = ResultFile(tmp_path / "whole.jsonl", {"run": {}})
    comparison.run(whole)

    calls = iter(range(1, 100))

    def interrupt() -> None:
        if next(calls) == 5:
            raise KeyboardInterrupt

    part = ResultFile(tmp_path / "part.jsonl", {"run": {}})
    with pytest.raises(KeyboardInterrupt):
        comparison.run(part, interrupt)
    rest = ResultFile(tmp_path / "part.jsonl", {"run": {}}, resume=True)
    assert len(rest) == 5
    comparison.run(rest)

    def told(file: ResultFile) -> list[tuple[Any, ...]]:
        return [(e.key, e.method, e.repeat, e.tokens, e.output) for e in entries(file)]

    assert told(rest) == told(whole)


@pytest.fixture
def on_the_toy(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Commands get this session."""
    session = toy_session()
    monkeypatch.setattr(common, "open_session", lambda *args, **settings: session)
    return session


def test_the_command(on_the_toy: Session, tmp_path: File) -> None:
    records = [
        {"id": name, "prompt_id": 1, "turns": [TALK[0][1]], "outputs": [TALK[place][1]]}
        for name, place in (("a", 1), ("b", 3))
    ]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, records)))
    command = ["bench", "simulate", "talks", "--data", str(tmp_path), "--out", str(tmp_path)]
    command += ["--methods", "llma,anpd:n=3,k=2", "--repeats", "1", "--answers", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "talks" in line and "x" in line]
    assert [row.split("│")[2].strip() for row in rows] == ["plain", "llma", "anpd:n=3,k=2"]
    assert not any("–" in row for row in rows), "both answer one prompt: there is no interval"
    header, *lines = map(
        json.loads, (tmp_path / "simulate-smollm2-135m.jsonl").read_text().splitlines()
    )
    assert header["run"]["kind"] == "simulate"
    assert header["run"]["answers"] == 1
    assert [line["suite"] for line in lines] == ["talks"] * 6
    assert [line["method"] for line in lines if "output" in line] == ["plain", "plain"]

    again = CliRunner().invoke(app, command)
    assert again.exit_code != 0
    assert "--resume" in str(again.exception)
    before = on_the_toy.target.passes
    assert CliRunner().invoke(app, [*command, "--resume"]).exit_code == 0
    assert on_the_toy.target.passes == before
    single = CliRunner().invoke(app, [*command, "--limit", "1", "--out", str(tmp_path / "one")])
    assert "talks" in single.output and "–" not in single.output
    other = CliRunner().invoke(app, [*command, "--resume", "--answers", "0"])
    assert other.exit_code != 0


def test_the_command_names_the_file_of_system_messages(tmp_path: File) -> None:
    (tmp_path / "talks.jsonl").write_text("{}\n")
    words = ["bench", "simulate", "talks", "--data", str(tmp_path), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, "--system", str(tmp_path / "nope")])
    assert result.exit_code != 0
    assert f"cannot read the system message file {tmp_path}/nope" in str(result.exception)


def test_the_command_refuses_what_cannot_be_forced(on_the_toy: Session, tmp_path: File) -> None:
    result = CliRunner().invoke(
        app, ["bench", "simulate", "x.jsonl", "--out", str(tmp_path), "--methods", "transformers"]
    )
    assert result.exit_code != 0
    assert "unknown method 'transformers'" in str(result.exception)
