"""The friendly front on a toy model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch

import paceline
from paceline import session as module
from paceline.datastore import Datastore
from paceline.drafters import Anpd, Plain
from paceline.errors import StoreError, UsageError
from paceline.loop import DEFAULT_BUDGET
from paceline.messages import query_of
from paceline.models.vocabulary import vocabulary_mark
from paceline.noise import gumbel
from paceline.options import Options
from paceline.records import Round
from paceline.session import Session
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import Tree
from tests.tiny import byte_tokenizer, toy_session
from tests.tiny_models import tiny_model

METHODS = ["plain", "anpd", "anpd:branches=2", "llma", "pld", "lookahead", "jacobi"]


class Oracle(Plain):
    """Knows the answer and guesses four tokens of it at a time."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = answer
        self.place = 0

    def propose(self, budget: int) -> Tree:
        return Tree.chain(self.answer[self.place : self.place + min(4, budget)])

    def observe(self, round: Round) -> None:
        self.place += len(round.path.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_the_same_text(method: str, temperature: float) -> None:
    request = {"max_new_tokens": 60, "temperature": temperature, "seed": 5}
    plain = toy_session("plain").generate("once upon", **request)
    fast = toy_session(method, budget=DEFAULT_BUDGET).generate("once upon", **request)
    assert (fast.text, fast.tokens, fast.finish_reason) == (
        plain.text,
        plain.tokens,
        plain.finish_reason,
    )
    assert fast.stats.tokens == len(fast.tokens)


def test_a_stream_adds_up_to_the_completion() -> None:
    prompt = "once upon a time"
    answer = toy_session("plain").generate(prompt, max_new_tokens=80)
    session = toy_session(lambda: Oracle(answer.tokens), budget=DEFAULT_BUDGET)
    stream = session.stream(prompt, max_new_tokens=80)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == answer.text == stream.completion.text
    assert stream.completion.tokens == answer.tokens
    # All but the bonus tokens of the rounds were guessed.
    assert stream.completion.stats.accepted == 80 - stream.completion.stats.rounds
    assert any(chunk.drafted for chunk in chunks)
    assert not all(chunk.drafted for chunk in chunks)


def test_breaking_a_stream_off_leaves_what_there_is() -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon", max_new_tokens=80)
    next(stream)
    part = stream.completion
    assert part.finish_reason == "interrupted"
    whole = session.generate("once upon", max_new_tokens=80)
    assert whole.tokens[: len(part.tokens)] == part.tokens
    assert len(part.tokens) < len(whole.tokens)


@pytest.mark.parametrize("method", METHODS)
def test_stop_strings_end_text_tokens_and_counters_alike(method: str) -> None:
    free = toy_session("plain").generate("once upon", max_new_tokens=60)
    printable = [i for i in range(4, len(free.text) - 2) if "�" not in free.text[i : i + 2]]
    for place in printable[:12]:
        word = free.text[place : place + 2]
        session = toy_session(method, budget=DEFAULT_BUDGET)
        ended = session.generate("once upon", max_new_tokens=60, stop=word)
        assert ended.finish_reason == "stop"
        assert ended.text == free.text[: free.text.find(word)]
        assert ended.tokens == free.tokens[: len(ended.tokens)]
        assert ended.stats.tokens == len(ended.tokens)


def test_a_batch_equals_its_texts_one_by_one() -> None:
    prompts = ["once", "upon a time there", "x"]
    session = toy_session("anpd", budget=DEFAULT_BUDGET)
    batch = session.generate_batch(prompts, max_new_tokens=40)
    assert any(done.stats.drafted for done in batch)
    single = [toy_session("plain").generate(prompt, max_new_tokens=40) for prompt in prompts]
    assert [done.tokens for done in batch] == [done.tokens for done in single]
    assert [done.text for done in batch] == [done.text for done in single]


def test_a_large_batch_is_opened_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 2)
    prompts, session, most = [f"prompt {number}" for number in range(6)], toy_session("anpd"), 0
    step = session.texts._batch.step

    def watched(*args: Any) -> list[Round]:
        nonlocal most
        most = max(most, len(session.texts._batch))
        return step(*args)

    monkeypatch.setattr(session.texts._batch, "step", watched)
    batch = session.generate_batch(prompts, max_new_tokens=12)
    assert most == 2
    single = [toy_session("plain").generate(prompt, max_new_tokens=12) for prompt in prompts]
    assert [done.tokens for done in batch] == [done.tokens for done in single]


def test_a_large_batch_holds_only_the_texts_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 2)
    rules, most = WeakSet[Any](), 0

    class Rule:
        def __init__(self) -> None:
            rules.add(self)

        def __deepcopy__(self, memo: Any) -> Rule:
            return Rule()

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            nonlocal most
            most = max(most, len(rules))
            return scores

    prompts = [f"prompt {number}" for number in range(8)]
    done = toy_session("plain").generate_batch(prompts, processors=(Rule(),), max_new_tokens=5)
    assert [len(each.tokens) for each in done] == [5] * 8
    assert most == 1 + 2  # with the one that the others are copies of


def test_a_stream_closed_before_it_began_writes_nothing() -> None:
    session = toy_session("anpd")
    stream = session.stream("once", max_new_tokens=12)
    stream.close()
    assert (stream.run().tokens, stream.completion.finish_reason) == ([], "interrupted")
    assert len(session.texts._batch) == 0


def test_messages_go_through_the_chat_template() -> None:
    session = toy_session()
    messages = [{"role": "user", "content": "hi"}]
    expected = byte_tokenizer()("<user>hi\n<assistant>").input_ids
    assert session.encode(messages) == expected
    assert session.chat("hi", max_new_tokens=4).prompt_tokens == len(expected)


@dataclass
class Memory:
    """A store in memory."""

    kept: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, query: str, output: str) -> None:
        self.kept.append((query, output))

    def search(self, query: str, limit: int = 4) -> list[Any]:
        return [type("Entry", (), {"output": output}) for _, output in self.kept][:limit]


def test_a_store_keeps_answers_and_makes_the_second_request_faster() -> None:
    session = toy_session("llma", store=Memory(), budget=DEFAULT_BUDGET)
    first = session.generate("tell me", max_new_tokens=60)
    assert session.store is not None
    assert session.store.kept == [("tell me", first.text)]  # type: ignore[attr-defined]
    session.generate("secret", max_new_tokens=4, record=False)
    assert len(session.store) == 1  # type: ignore[arg-type]
    # References are text: a toy's random bytes survive it only in part, but some copies hit.
    second = session.generate("tell me", max_new_tokens=60)
    assert second.tokens == first.tokens
    assert second.stats.rounds < first.stats.rounds


@pytest.mark.parametrize("name", ["none", "", True])
def test_a_wrong_datastore_does_not_wait_for_the_model(name: Any) -> None:
    with pytest.raises(UsageError, match="names no datastore: leave it out"):
        paceline.load("no such model", datastore=name)


@pytest.mark.parametrize("method", ["sam", "rest:n=1"])
def test_a_datastore_keeps_answers_and_makes_later_texts_faster(
    method: str, tmp_path: Path
) -> None:
    store = Datastore(tmp_path, vocabulary_mark(byte_tokenizer()))
    session = toy_session(method, datastore=store, budget=DEFAULT_BUDGET)
    first = session.generate("tell me", max_new_tokens=60)
    assert store.info().tokens == 4 + 60
    second = session.generate("tell me", max_new_tokens=60)
    assert second.tokens == first.tokens
    assert second.stats.rounds < first.stats.rounds
    assert store.info().documents == 2
    other = toy_session(method, datastore=Datastore(tmp_path, vocabulary_mark(byte_tokenizer())))
    third = other.generate("tell me", max_new_tokens=60, budget=DEFAULT_BUDGET)
    assert third.tokens == first.tokens and third.stats.rounds == second.stats.rounds


def test_what_was_not_to_be_recorded_is_not(tmp_path: Path) -> None:
    store = Datastore(tmp_path, vocabulary_mark(byte_tokenizer()))
    session = toy_session("sam", datastore=store)
    session.generate("tell me", max_new_tokens=5, record=False)
    broken_off = session.stream("tell me", max_new_tokens=50)
    next(broken_off)
    broken_off.close()
    assert store.info().documents == 0 and not list(tmp_path.iterdir())
    session.generate_batch(["tell me", "and me"], max_new_tokens=5)
    assert store.info().documents == 2


def test_what_was_written_before_a_text_was_closed_is_not_kept(tmp_path: Path) -> None:
    store = Datastore(tmp_path, vocabulary_mark(byte_tokenizer()))
    session = toy_session("sam", store=(memory := Memory()), datastore=store)
    stream = session.stream("tell me", max_new_tokens=50, ignore_eos=True)
    next(stream)
    stream.close()
    assert list(stream) == []
    assert stream.run().finish_reason == "interrupted"
    assert not memory.kept and store.info().documents == 0


def test_a_text_closed_by_another_thread_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session = toy_session("anpd", store=(memory := Memory()))
    stream = session.stream("tell me", max_new_tokens=50, ignore_eos=True)
    play = session.texts._step

    def play_once() -> None:
        play()
        monkeypatch.setattr(session.texts, "_step", play)
        closing = Thread(target=stream.close)  # which waits for the turn
        closing.start()
        closers.append(closing)

    closers: list[Thread] = []
    monkeypatch.setattr(session.texts, "_step", play_once)
    next(stream, None)
    closers[0].join()
    done = stream.run()
    assert done.finish_reason == "interrupted" and 0 < len(done.tokens) < 50
    assert memory.kept == []
    whole = session.generate("tell me", max_new_tokens=5, ignore_eos=True)
    assert memory.kept == [("tell me", whole.text)]


@dataclass
class FullStore(Memory):
    """One whose disk is full."""

    tried: int = 0

    def add(self, query: str, output: str) -> None:
        self.tried += 1
        raise StoreError("the disk is full")


def test_an_answer_that_cannot_be_kept_is_an_answer_all_the_same() -> None:
    expected = toy_session("plain").generate("tell me", max_new_tokens=20)
    session = toy_session("anpd", store=(store := FullStore()))
    stream = session.stream("tell me", max_new_tokens=20)
    assert "".join(chunk.text for chunk in stream) == expected.text
    assert stream.run().text == expected.text and store.tried == 1  # once for each answer
    for done in (stream.completion, *session.generate_batch(["tell me"], max_new_tokens=20)):
        assert done.tokens == expected.tokens and str(done.unkept) == "the disk is full"
        assert not done.unkept.kept
    assert expected.unkept is None


def test_a_store_that_fails_does_not_keep_the_answer_from_the_datastore(tmp_path: Path) -> None:
    store = Datastore(tmp_path, vocabulary_mark(byte_tokenizer()))
    session = toy_session("sam", store=FullStore(), datastore=store)
    done = session.generate("tell me", max_new_tokens=5)
    assert str(done.unkept) == "the disk is full"
    assert store.info().documents == 1


class Locked(Memory):
    """One that another process has locked."""

    def search(self, query: str, limit: int = 4) -> list[Any]:
        raise StoreError("it is locked")


class Broken(Memory):
    """One whose encoder fails."""

    def search(self, query: str, limit: int = 4) -> list[Any]:
        raise RuntimeError("CUDA out of memory")

    def add(self, query: str, output: str) -> None:
        raise RuntimeError("CUDA out of memory")


class PanicError(BaseException):
    """As a library in Rust raises it."""


class Panicking(Memory):
    """One whose encoder panics."""

    def search(self, query: str, limit: int = 4) -> list[Any]:
        raise PanicError("CUDA out of memory")

    add = search  # type: ignore[assignment]


@pytest.mark.parametrize("store", [Locked, Broken, Panicking])
def test_a_store_that_cannot_be_searched_stops_nobody(store: type[Memory]) -> None:
    expected = toy_session("plain").generate("tell me", max_new_tokens=20)
    done = toy_session("anpd", store=store()).generate("tell me", max_new_tokens=20)
    assert done.tokens == expected.tokens and done.error is None
    assert (store is not Locked) == ("CUDA out of memory" in str(done.unkept))


def test_messages_may_come_from_an_iterator() -> None:
    messages = [{"role": "user", "content": "hi"}]
    session = toy_session("plain", store=(store := Memory()))
    once = session.generate(iter(messages), max_new_tokens=9)  # type: ignore[arg-type]
    assert once.text == session.generate(messages, max_new_tokens=9).text  # type: ignore[arg-type]
    assert [query for query, _ in store.kept] == ["hi", "hi"]


def test_messages_without_text_are_no_query() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": []}
    parts = {"role": "user", "content": [{"type": "text", "text": "no"}]}
    assert query_of([{"role": "user", "content": "hi"}, called, parts]) == "hi"  # type: ignore[list-item]


@pytest.mark.parametrize("method", ["anpd", "llma", "suffix", "auto"])
def test_references_of_another_model_are_left_out(method: str) -> None:
    """Of ids that the model does not have some drafters would guess what no pass can score."""
    target = CausalLMTarget(tiny_model("llama"), check=False)
    session = Session(target, byte_tokenizer(), method, budget=DEFAULT_BUDGET)
    plain = Session(target, byte_tokenizer(), "plain").generate([7, 8, 9], max_new_tokens=8)
    foreign = [[9, *plain.tokens[:2], 5000], [9, plain.tokens[0], -3], "hello"]
    done = session.generate([7, 8, 9], max_new_tokens=8, references=foreign)
    assert done.tokens == plain.tokens


def test_one_reference_may_be_given_as_it_is() -> None:
    session = toy_session("llma")
    assert session.encode_references("hello") == session.encode_references(["hello"])
    stream = session.stream("hi", references="hello", max_new_tokens=4)
    assert stream.run().tokens == toy_session("plain").generate("hi", max_new_tokens=4).tokens
    assert stream._text is not None and len(stream._text.text.generation.references) == 1


def test_what_another_text_of_a_batch_has_read_counts_as_reused() -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    session = Session(target, byte_tokenizer(), "plain")
    done = session.generate_batch([[5] * 60 + [6, 7], [5] * 60 + [8, 9]], max_new_tokens=4)
    assert [one.stats.reused for one in done] == [one.cached_tokens for one in done]
    assert done[1].cached_tokens >= 60


def test_references_speed_up_copying_methods() -> None:
    session = toy_session("llma", budget=DEFAULT_BUDGET)
    plain = session.generate("tell me", max_new_tokens=60)
    helped = session.generate("tell me", max_new_tokens=60, references=[plain.text])
    assert helped.tokens == plain.tokens
    assert helped.stats.rounds < plain.stats.rounds


def test_a_function_may_make_the_drafter() -> None:
    session = toy_session(lambda: Anpd(n=3, k=4), budget=DEFAULT_BUDGET)
    assert session.generate("once upon", max_new_tokens=20).stats.drafted > 0


BYTES = len(byte_tokenizer())


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ("x" * 5000, {}, "5000 tokens but the model's context is 4096"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ("x", {"max_new_tokens": -3}, "max_new_tokens must be at least 1, got -3"),
        ("x", {"temperature": -0.5}, "temperature must be a number >= 0"),
        ("x", {"temperature": float("nan")}, "temperature must be a number >= 0"),
        ("x", {"temperature": 1e39}, "temperature must be a number >= 0, at most 1e30, got 1e"),
        ("x", {"top_p": 1.5}, "top_p must be in"),
        ("x", {"stop": ("",)}, "stop string is empty"),
        ("x", {"budget": -1}, "budget must be at least 0"),
        ("x", {"budget": 2**63}, "budget must be at most 4096"),
        ("x", {"temprature": 1.0}, "did you mean temperature"),
        ("x", {"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ("x", {"max_new_tokens": 5.5}, "max_new_tokens must be a whole number"),
        ("x", {"budget": "7"}, "budget must be a whole number"),
        ("x", {"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ("x", {"temperature": 10**400}, "temperature must be a number, got"),
        ("x", {"top_p": "0.9"}, "top_p must be a number, got '0.9'"),
        ("x", {"presence_penalty": [1.0]}, "presence_penalty must be a number"),
        ("x", {"logit_bias": {5.5: 1.0}}, "a token of logit_bias must be a whole number, got 5.5"),
        ("x", {"logit_bias": {"5": 1.0}}, "a token of logit_bias must be a whole number"),
        ("x", {"logit_bias": {5: None}}, "a bias of logit_bias must be a number, got None"),
        ("x", {"logit_bias": {BYTES: 1.0}}, f"token {BYTES} but .* ends at {BYTES}"),
        ("x", {"logit_bias": [(5, 1.0)]}, "logit_bias must map token ids to numbers"),
        ("x", {"ignore_eos": "no"}, "ignore_eos must be True or False, got 'no'"),
        ("x", {"record": 1}, "record must be True or False, got 1"),
        ("x", {"stop": 5}, "stop must be a text or a list of texts, got 5"),
        ("x", {"stop": [b"end"]}, "stop must be a text or a list of texts"),
        ("x", {"processors": print}, "processors must be a list of functions"),
        ("x", {"constraint": "a+"}, "constraint must be a Constraint, .* got str"),
        ("x", {"typical": 0.3, "temperature": 1.0}, "typical must be True, False or a Typical"),
        (["a", "b"], {}, "for several prompts use generate_batch"),
        ([5, -1], {}, "the prompt holds token -1"),
    ],
)
def test_bad_requests_are_one_sentence(prompt: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        toy_session().generate(prompt, **options)
    assert "\n" not in str(caught.value)


HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (np.array([5, 6, 7]), [5, 6, 7]),
        (torch.tensor([5, 6, 7]), [5, 6, 7]),
        ((5, np.int64(6), torch.tensor(7)), [5, 6, 7]),
        (iter([5, 6, 7]), [5, 6, 7]),
        (HI, [HI]),
    ],
)
def test_prompts_whose_meaning_is_clear(given: Any, meant: Any) -> None:
    session, options = toy_session(store=Memory()), {"max_new_tokens": 5}
    expected = toy_session().generate(meant, **options)
    assert session.generate(given, **options).tokens == expected.tokens
    assert session.store is not None and len(session.store.kept) == (given is HI)  # type: ignore[attr-defined]


NO_TEXTS = [[HI, {**HI, "content": said}] for said in (b"hi", [b"hi"], 0)]


@pytest.mark.parametrize(
    "prompt",
    [None, 5, 2.5, [2.5], {}, {"input_ids": [5]}, [HI, "x"], [[5]], b"hi", *NO_TEXTS],
)
def test_what_is_no_prompt_fails_alone(prompt: Any) -> None:
    session = toy_session(store=Memory())
    with pytest.raises(UsageError, match="a prompt must be a text"):
        session.generate(prompt)
    refused, served = session.generate_batch([prompt, "hi"], max_new_tokens=3)
    assert isinstance(refused.error, UsageError) and refused.finish_reason == "error"
    assert len(served.tokens) == 3


def test_a_prompt_that_fails_is_read_once() -> None:
    session = toy_session()
    refused, _ = session.generate_batch([iter([5, 10**9]), "hi"], max_new_tokens=3)
    assert "holds token 1000000000" in str(refused.error)


def test_a_single_message_is_a_chat() -> None:
    session = toy_session()
    chat = session.chat(HI, max_new_tokens=4)
    assert chat.tokens == session.chat("hi", max_new_tokens=4).tokens


def test_references_whose_meaning_is_clear() -> None:
    session = toy_session("llma")
    ids = [[5, 6, 7]]
    for given in (
        ids,
        np.array(ids),
        torch.tensor(ids),
        [np.array(ids[0])],
        [torch.tensor([5, 6, 7])],
    ):
        assert session.encode_references(given) == ids  # type: ignore[arg-type]
    assert session.encode_references(None) == []
    assert len(session.generate("hi", references=None, max_new_tokens=4).tokens) == 4
    for wrong in (5, [5, 6], [None], [[2.5]], b"hi", [b"hi"]):
        with pytest.raises(UsageError, match="references must be texts or lists of token ids"):
            session.generate("hi", references=wrong)  # type: ignore[arg-type]
    refused, served, bare = session.generate_batch(
        ["hi"] * 3,
        references=[[5], ["hello"], None],  # type: ignore[list-item]
        max_new_tokens=3,
    )
    assert isinstance(refused.error, UsageError)
    assert len(served.tokens) == len(bare.tokens) == 3


@pytest.mark.parametrize("wrong", ["hi", HI])
def test_a_batch_is_a_list(wrong: Any) -> None:
    session = toy_session()
    with pytest.raises(UsageError, match="prompts must be a list"):
        session.generate_batch(wrong, max_new_tokens=3)
    with pytest.raises(UsageError, match="references must be a list"):
        session.generate_batch(["a", "b"], references=wrong, max_new_tokens=3)


@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
def test_none_is_the_default_of_every_setting(name: str) -> None:
    options = Options(**{name: None})
    assert options == Options()
    done = toy_session("plain").generate("hi", **{"max_new_tokens": 5, name: None})
    assert done.finish_reason in ("length", "eos")


@pytest.mark.parametrize("seed", [np.int64(5), np.uint32(5), torch.tensor(5)])
def test_any_whole_number_is_a_seed(seed: Any) -> None:
    request = {"max_new_tokens": 8, "temperature": 1.0}
    expected = toy_session().generate_batch(["a", "b"], seed=5, **request)
    found = toy_session().generate_batch(["a", "b"], seed=seed, **request)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert gumbel(seed, 3, 4).tolist() == gumbel(5, 3, 4).tolist()


def test_without_a_chat_template_messages_are_refused() -> None:
    tokenizer = byte_tokenizer(template=None)
    session = Session(ToyTarget(len(tokenizer)), tokenizer, "plain")
    with pytest.raises(UsageError, match="no chat template"):
        session.chat("hi")


def test_a_template_that_refuses_messages_says_so_for_its_prompt_alone() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    tokenizer = byte_tokenizer(template=template)
    session = Session(ToyTarget(len(tokenizer)), tokenizer, "plain")
    wrong = [{"role": "system", "content": "hi"}]
    with pytest.raises(UsageError, match="rejects these messages: no system"):
        session.generate(wrong)
    refused, served = session.generate_batch([wrong, "hi"], max_new_tokens=3)
    assert isinstance(refused.error, UsageError) and len(served.tokens) == 3


@pytest.mark.parametrize("method", METHODS)
def test_one_token_and_an_immediate_end_work(method: str) -> None:
    session = toy_session(method)
    one = session.generate("once upon", max_new_tokens=1)
    assert (len(one.tokens), one.finish_reason) == (1, "length")
    session.eos_ids = (one.tokens[0],)
    ended = session.generate("once upon", max_new_tokens=10)
    assert (ended.tokens, ended.finish_reason) == (one.tokens, "eos")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_token_that_ends_a_text_is_not_part_of_it(ignored: bool) -> None:
    """In some files of chat models it is an ordinary token."""
    session, prompt = toy_session("anpd", budget=DEFAULT_BUDGET), "once upon"
    free = session.generate(prompt, max_new_tokens=60, ignore_eos=True)
    letters = [session.tokenizer.decode([token]) for token in free.tokens]
    once = (at for at in range(1, 60) if letters[at] not in letters[:at])
    place = next(at for at in once if letters[at].isascii())
    before = session.generate(prompt, max_new_tokens=place, ignore_eos=True)
    session.eos_ids = (free.tokens[place],)
    stream = session.stream(prompt, max_new_tokens=60, ignore_eos=ignored)
    text = "".join(chunk.text for chunk in stream)
    assert text == stream.completion.text == (free.text if ignored else before.text)
    assert len(stream.completion.tokens) == (60 if ignored else place + 1)


def test_the_context_limit_ends_a_text() -> None:
    done = toy_session("anpd").generate("x" * 4090, max_new_tokens=50)
    assert (len(done.tokens), done.finish_reason) == (6, "length")


def test_a_tokenizer_of_another_model_is_named() -> None:
    session = Session(ToyTarget(vocab_size=20), byte_tokenizer(), "plain")
    with pytest.raises(UsageError, match="the tokenizer belongs to another model"):
        session.generate("hello")


def test_what_is_no_character_is_refused() -> None:
    with pytest.raises(UsageError, match="not a character"):
        toy_session().generate("a\ud800")


def test_a_temperature_next_to_nothing_is_greedy() -> None:
    greedy = toy_session().generate("once upon", max_new_tokens=20)
    cold = toy_session().generate("once upon", max_new_tokens=20, temperature=1e-300)
    assert cold.tokens == greedy.tokens


def test_an_interrupt_in_the_middle_of_a_walk_leaves_text_and_tokens_in_step() -> None:
    calls = 0

    def interrupt(ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyboardInterrupt
        return scores

    prompt = "once upon a time"
    answer = toy_session("plain").generate(prompt, max_new_tokens=80)
    session = toy_session(lambda: Oracle(answer.tokens))
    stream = session.stream(prompt, max_new_tokens=80, processors=(interrupt,))
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    part = stream.completion
    assert part.tokens == answer.tokens[: len(part.tokens)]
    assert len(part.tokens) == part.stats.tokens < 30
    assert part.text == session.tokenizer.decode(part.tokens, skip_special_tokens=True).rstrip("�")


def test_streams_that_somebody_else_drives_write_what_they_write_alone() -> None:
    """As a server does it: one thread plays rounds, and every stream is asked what it heard."""
    prompts = ["once upon", "a time there was", "x"]
    session = toy_session("anpd")
    streams = [session.stream(prompt, max_new_tokens=40 + i) for i, prompt in enumerate(prompts)]
    texts = [""] * len(streams)
    with ExitStack() as awaited:
        for stream in streams:
            awaited.enter_context(stream.awaited())
        while not all(stream.ended for stream in streams):
            session.texts.play()
            for place, stream in enumerate(streams):
                if not stream.ended:
                    texts[place] += "".join(chunk.text for chunk in stream.poll())
    for place, stream in enumerate(streams):
        alone = toy_session("plain").generate(prompts[place], max_new_tokens=40 + place)
        assert texts[place] == stream.completion.text == alone.text
        assert stream.completion.tokens == alone.tokens


def test_a_special_token_may_be_a_stop_string() -> None:
    """It has no text in an output, so only its id can end it."""
    session = toy_session("anpd")
    tokens = session.generate("once upon", max_new_tokens=40).tokens
    tokenizer: Any = session.tokenizer
    place = next(n for n, token in enumerate(tokens) if tokens.index(token) == n > 5)
    word = tokenizer.convert_ids_to_tokens(tokens[place])
    tokenizer.add_special_tokens({"additional_special_tokens": [word]})
    ended = session.generate("once upon", max_new_tokens=40, stop=[word, "never said"])
    assert (ended.tokens, ended.finish_reason) == (tokens[: place + 1], "stop")
