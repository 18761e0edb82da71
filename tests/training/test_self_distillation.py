"""Making training data: what is in it, and that it is the same whatever happens on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from tests.tiny import TEMPLATE, toy_session
from tests.training.shared import MODEL, content, make, prompt_file

from paceline.errors import UsageError
from paceline.training import self_distillation
from paceline.training.asking import Asking
from paceline.training.data import TrainingData
from paceline.training.order import read_prompt_files


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of four prompts, so that small runs have several."""
    monkeypatch.setattr(self_distillation, "SHARD_PROMPTS", 4)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return prompt_file(tmp_path, 14)


def test_answers_are_what_the_model_says_to_the_prompt(tmp_path: Path, prompts: Path) -> None:
    manifest = make(tmp_path / "data", prompts)
    data = TrainingData(tmp_path / "data", MODEL)
    assert manifest.complete and data.manifest.answers == manifest.answers == 14
    assert [shard.prompts for shard in manifest.shards] == [4, 4, 4, 2]
    session = toy_session("plain")
    for answer in data:
        words = f"prompts.jsonl {answer.id.partition('/')[2]}?"
        completion = session.chat(words, max_new_tokens=12)
        assert answer.tokens == completion.tokens
        assert answer.finish_reason == completion.finish_reason
        assert answer.prompt == session.encode([{"role": "user", "content": words}])
    assert sum(len(answer.tokens) for answer in data) == manifest.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_shard_depends_on_seed_and_place_alone(
    tmp_path: Path, prompts: Path, temperature: float
) -> None:
    """Not on the drafter, nor on what is answered together with what."""
    shards = []
    for name, asking in enumerate(
        [{"batch": 1, "method": "plain"}, {"batch": 3}, {"batch": 4, "method": "pld", "budget": 3}]
    ):
        make(tmp_path / str(name), prompts, temperature=temperature, **asking)
        shards.append(content(tmp_path / str(name)))
        del shards[-1]["manifest.json"]
    assert shards[0] == shards[1] == shards[2]
    make(tmp_path / "other", prompts, temperature=temperature, seed=1)
    assert content(tmp_path / "other")["shard-00000.jsonl.gz"] not in shards[0].values()


def test_one_prompt_is_not_answered_alike_twice_when_sampling(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    path.write_text('{"turns": ["the same"]}\n' * 2, encoding="utf-8")
    make(tmp_path / "data", path, temperature=1.0)
    first, second = TrainingData(tmp_path / "data")
    assert first.prompt == second.prompt and first.tokens != second.tokens


@pytest.mark.parametrize("tokens", [1, 30, 60, 100])
def test_it_ends_with_the_batch_that_brings_the_last_token(
    tmp_path: Path, prompts: Path, tokens: int
) -> None:
    heard: list[int] = []
    manifest = make(tmp_path / "data", prompts, tokens, on_tokens=heard.append)
    answers = list(TrainingData(tmp_path / "data"))
    assert manifest.complete and manifest.wanted == tokens
    assert tokens <= manifest.tokens == sum(heard) < tokens + 3 * 12
    assert all(answer.finish_reason == "eos" or len(answer.tokens) == 12 for answer in answers)


def test_more_tokens_may_be_asked_for_later(tmp_path: Path, prompts: Path) -> None:
    for tokens in (1, 30, 31, 100, 20):
        make(tmp_path / "grown", prompts, tokens)
    make(tmp_path / "direct", prompts, 100)
    grown, direct = content(tmp_path / "grown"), content(tmp_path / "direct")
    assert TrainingData(tmp_path / "grown").manifest.wanted == 20
    del grown["manifest.json"], direct["manifest.json"]
    assert grown == direct


def test_when_the_prompts_are_used_up_it_ends(tmp_path: Path) -> None:
    manifest = make(tmp_path / "data", prompt_file(tmp_path, 2), 1000)
    assert manifest.complete and 0 < manifest.tokens < 1000


def test_the_answers_of_a_conversation_stand_in_between(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    talks = [{"id": "long", "turns": ["a", "b", "c"]}, {"id": "short", "turns": ["d"]}]
    path.write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    make(tmp_path / "data", path)
    answers = {answer.id: answer for answer in TrainingData(tmp_path / "data")}
    assert sorted(answers) == ["long#1", "long#2", "long#3", "short"]
    session, messages = toy_session("plain"), []
    for turn, text in enumerate("abc", start=1):
        messages.append({"role": "user", "content": text})
        completion = session.chat(messages, max_new_tokens=12)
        assert answers[f"long#{turn}"].prompt == session.encode(messages)
        assert answers[f"long#{turn}"].tokens == completion.tokens
        messages.append({"role": "assistant", "content": completion.text})


def test_raw_text_is_continued_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text('{"prompt": "Once upon"}\n', encoding="utf-8")
    make(tmp_path / "data", path)
    (answer,) = TrainingData(tmp_path / "data")
    assert answer.prompt == toy_session().encode("Once upon")


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    talks = [{"turns": ["x" * 90]}, {"turns": ["y", "z" * 90, "w"]}, {"turns": ["v"]}]
    path.write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    manifest = make(tmp_path / "data", path, longest_prompt=80)
    assert manifest.skipped == 2
    assert sorted(answer.id for answer in TrainingData(tmp_path / "data")) == ["2#1", "3"]


def test_licences_are_carried_and_counted(tmp_path: Path) -> None:
    own = prompt_file(tmp_path, 2, "own.jsonl", licence="CC0-1.0")
    plain = prompt_file(tmp_path, 3, "plain.jsonl")
    files = read_prompt_files([own, plain], ["", "MIT"])
    make(tmp_path / "data", files)
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["licences"] == {"CC0-1.0": 2, "MIT": 3}
    assert manifest["about"] == {"command": "test"}
    assert [file["name"] for file in manifest["run"]["prompts"]] == ["own.jsonl", "plain.jsonl"]
    for answer in TrainingData(tmp_path / "data"):
        assert answer.licence == {"own.jsonl": "CC0-1.0", "plain.jsonl": "MIT"}[answer.source]
    make(tmp_path / "unknown", prompt_file(tmp_path, 1, "bare.jsonl"))
    assert TrainingData(tmp_path / "unknown").manifest.licences == {"unknown": 1}


# Killed --------------------------------------------------------------------------------------


def in_a_process(work: Callable[[], object]) -> multiprocessing.Process:
    """A process of its own that does the work; forked, since importing takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process  # type: ignore[return-value]


def test_killed_before_and_after_every_step_of_writing(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "whole", prompts, 100)
    steps = 2 * (len(TrainingData(tmp_path / "whole").manifest.shards) + 2)
    calls = 0

    def kill_at(step: int, out: Path) -> None:
        def tick() -> None:
            nonlocal calls
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(act: Callable[..., object], *arguments: object) -> object:
            tick()
            result = act(*arguments)
            tick()
            return result

        fsync, replace = os.fsync, Path.replace
        monkeypatch.setattr(os, "fsync", lambda number: counted(fsync, number))
        monkeypatch.setattr(Path, "replace", lambda *paths: counted(replace, *paths))
        make(out, prompts, 100)

    for step in range(1, 2 * steps + 1):
        out = tmp_path / str(step)
        process = in_a_process(lambda step=step, out=out: kill_at(step, out))
        process.join()
        assert process.exitcode == -signal.SIGKILL
        for draft in out.glob(".*.tmp"):
            os.truncate(draft, draft.stat().st_size // 2)
        make(out, prompts, 100)
        assert content(out) == content(tmp_path / "whole")


def test_killed_again_and_again_at_random_moments(tmp_path: Path, prompts: Path) -> None:
    """Moments are counted in tokens made, since by the clock a busy machine may miss them all."""
    make(tmp_path / "whole", prompts, temperature=1.0)
    out, chance, kills = tmp_path / "killed", random.Random(5), 0

    def until(moment: int) -> None:
        made = 0

        def on_tokens(count: int) -> None:
            nonlocal made
            made += count
            if made >= moment:
                os.kill(os.getpid(), signal.SIGKILL)

        make(out, prompts, temperature=1.0, on_tokens=on_tokens)

    while True:
        moment = chance.randint(1, 30 * (kills + 1))
        process = in_a_process(lambda moment=moment: until(moment))
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 3
    assert content(out) == content(tmp_path / "whole")


# Refused -------------------------------------------------------------------------------------


def test_another_run_is_not_mixed_in(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "data"
    make(out, prompts, 30)
    before = content(out)
    with pytest.raises(UsageError, match=r"another seed \(0, not 1\)"):
        make(out, prompts, 30, seed=1)
    with pytest.raises(UsageError, match=r"another model \('toy-0123', not 'other'\)"):
        make(out, prompts, 30, fingerprint="other")
    with pytest.raises(UsageError, match="made with other prompts: repeat its command"):
        make(out, prompt_file(tmp_path, 3, "others.jsonl"), 30)
    assert content(out) == before


def test_a_prompt_that_the_chat_template_rejects_is_named(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% if ' 7?' in messages[0].content %}{{ raise_exception('no sevens') }}{% endif %}"
    session = toy_session(fingerprint=MODEL)
    session.tokenizer.chat_template = template + TEMPLATE
    asking = Asking(max_new_tokens=12)
    with pytest.raises(UsageError) as caught:
        self_distillation.make_data(
            session, read_prompt_files([prompts]), 10**9, tmp_path / "data", asking
        )
    assert str(caught.value) == (
        f"{prompts}, line 8, prompt prompts/7: the model's chat template rejects these messages: "
        "no sevens"
    )


def test_a_prompt_with_tokens_that_the_model_lacks_is_named(tmp_path: Path, prompts: Path) -> None:
    session = toy_session(fingerprint=MODEL)
    session.tokenizer.add_tokens([" 7?"])
    files, asking = read_prompt_files([prompts]), Asking(max_new_tokens=12)
    with pytest.raises(UsageError, match=r"line 8, prompt prompts/7: the prompt holds token 257 "):
        self_distillation.make_data(session, files, 10**9, tmp_path / "data", asking)


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "data"
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(UsageError, match="another process is writing"):
        make(out, prompts)


def test_what_cannot_be_made(tmp_path: Path, prompts: Path) -> None:
    with pytest.raises(UsageError, match="tokens must be at least 1"):
        make(tmp_path / "data", prompts, 0)
    with pytest.raises(UsageError, match=r"cannot write to .*prompts\.jsonl"):
        make(prompts / "data", prompts)
    with pytest.raises(UsageError, match="batch and the longest prompt"):
        make(tmp_path / "data", prompts, batch=0)
    with pytest.raises(UsageError, match="temperature"):
        make(tmp_path / "data", prompts, temperature=-1.0)
    assert not (tmp_path / "data").exists()
