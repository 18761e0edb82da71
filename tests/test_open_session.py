"""Streams and threads that share a session: whatever else goes on, a text is the one it is alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from itertools import count
from threading import Event, Lock, Semaphore, Thread
from time import sleep
from types import FrameType
from typing import Any

import pytest
import torch

from paceline import shared_batch
from paceline.drafters import Plain
from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.options import Options
from paceline.records import Round, TextStart
from paceline.session import Session, Stream
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.text import OutputText
from tests.helpers import on_its_model
from tests.tiny import byte_tokenizer, toy_session

METHODS = ["plain", "anpd", "llma", "pld", "lookahead", "jacobi"]
each_method = pytest.mark.parametrize("method", METHODS)
each_temperature = pytest.mark.parametrize("temperature", [0.0, 0.8])


def alone(prompt: str, **options: Any) -> list[int]:
    return toy_session("plain").generate(prompt, **options).tokens


def open_slots(session: Session) -> int:
    assert isinstance(session.target, ToyTarget)
    return len(session.target._slots)


@each_temperature
@each_method
def test_a_paused_stream_goes_on_as_if_nothing_had_come_between(
    method: str, temperature: float
) -> None:
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 4}
    session = toy_session(method)
    stream = session.stream("The capital of France is", **options)
    next(stream)
    between = session.generate("def fibonacci(n):", **options)
    list(stream)
    assert stream.completion.tokens == alone("The capital of France is", **options)
    assert between.tokens == alone("def fibonacci(n):", **options)
    assert open_slots(session) == 0


@each_method
def test_streams_may_take_turns_chunk_by_chunk(method: str) -> None:
    session = toy_session(method)
    prompts = ["one", "two two two", "three and so on and so on"]
    streams = [session.stream(prompt, max_new_tokens=30) for prompt in prompts]
    going = list(streams)
    while going:
        going = [stream for stream in going if next(stream, None) is not None]
    for prompt, stream in zip(prompts, streams):
        assert stream.completion.tokens == alone(prompt, max_new_tokens=30)


def test_a_stream_inside_another_one() -> None:
    session = toy_session("anpd")
    outer = session.stream("an outer text", max_new_tokens=20)
    inner = []
    for _ in outer:
        inner.append(session.generate("an inner text", max_new_tokens=7).tokens)
    assert outer.completion.tokens == alone("an outer text", max_new_tokens=20)
    assert inner and all(one == alone("an inner text", max_new_tokens=7) for one in inner)


def test_a_paused_stream_costs_the_others_nothing() -> None:
    session = toy_session("plain")
    paused = session.stream("paused", max_new_tokens=50)
    next(paused)
    assert paused._text is not None
    written = paused._text.text.generation.output
    session.generate("another", max_new_tokens=30)
    assert paused._text.text.generation.output == written


def test_a_stream_that_is_closed_early_keeps_what_it_has() -> None:
    session = toy_session("anpd")
    with session.stream("once upon a time", max_new_tokens=50) as stream:
        next(stream)
    found = stream.completion
    assert found.finish_reason == "interrupted" and 0 < len(found.tokens) < 50
    assert found.tokens == alone("once upon a time", max_new_tokens=50)[: len(found.tokens)]
    assert next(stream, None) is None and open_slots(session) == 0
    stream.close()
    assert session.generate("two", max_new_tokens=9).tokens == alone("two", max_new_tokens=9)
    unheard = session.stream("once upon a time", max_new_tokens=3)
    with unheard.awaited():
        for _ in range(3):
            session.texts.play()
    unheard.close()
    assert unheard.completion.finish_reason == "interrupted"
    unbegun = session.stream("once upon a time", max_new_tokens=9)
    unbegun.close()
    assert unbegun.run().tokens == [] and open_slots(session) == 0


def test_a_stream_that_nobody_holds_gives_its_slot_back() -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon a time", max_new_tokens=50)
    next(stream)
    assert open_slots(session) == 1
    del stream
    gc.collect()
    other = session.stream("two", max_new_tokens=3)
    next(other)
    assert open_slots(session) == 1  # freed before the new text was opened
    other.run()
    assert open_slots(session) == 0


def test_streams_that_nobody_holds_give_their_drafters_to_the_next() -> None:
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain())
        return made[-1]

    session = toy_session(make)
    for _ in range(2):
        gc.collect()
        next(session.stream("once upon a time", max_new_tokens=50))
    assert len(made) == 1


def test_an_interrupted_close_gives_the_slot_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon a time", max_new_tokens=50)
    next(stream)

    def interrupted(*text: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.texts, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.close()
    session.generate("two", max_new_tokens=3)
    assert open_slots(session) == 0


def test_an_abandoned_text_that_cannot_be_closed_is_no_error_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon a time", max_new_tokens=50)
    next(stream)
    close = session.target.close

    def failing(slot: int) -> None:
        monkeypatch.setattr(session.target, "close", close)
        raise MemoryError

    monkeypatch.setattr(session.target, "close", failing)
    assert stream._text is not None
    session.texts.abandon(stream._text.text.key)
    done = session.generate("two", max_new_tokens=9)
    assert done.tokens == alone("two", max_new_tokens=9)


class StartsBadly(Plain):
    """Fails in texts that begin like this."""

    def start(self, text: TextStart) -> None:
        if list(text.context) == byte_tokenizer()("bad").input_ids:
            raise ValueError("this drafter has failed")


def test_a_text_that_cannot_begin_leaves_the_others_alone() -> None:
    session = toy_session(StartsBadly)
    done = session.generate_batch(["one", "bad", "two"], max_new_tokens=9)
    assert [one.tokens for one in done[::2]] == [alone(p, max_new_tokens=9) for p in ("one", "two")]
    assert isinstance(done[1].error, ValueError) and done[1].finish_reason == "error"
    with pytest.raises(ValueError, match="has failed"):
        session.generate("bad", max_new_tokens=9)
    assert open_slots(session) == 0


def raising(at: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A processor that fails at its n-th token."""
    calls = 0

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            raise ValueError("this processor has failed")
        return scores

    return process


@each_method
def test_a_processor_that_raises_ends_its_text_alone(method: str) -> None:
    session = toy_session(method)
    good = session.stream("a good text", max_new_tokens=30)
    next(good)
    with pytest.raises(ValueError, match="this processor has failed"):
        session.generate("a bad text", max_new_tokens=30, processors=(raising(at=5),))
    list(good)
    assert good.completion.tokens == alone("a good text", max_new_tokens=30)
    assert open_slots(session) == 0


def test_a_failing_text_of_a_batch_says_so_and_the_others_are_there() -> None:
    session = toy_session("anpd")
    prompts = ["one", "x" * 5000, "", "three"]
    done = session.generate_batch(prompts, max_new_tokens=20)
    assert [each.finish_reason for each in done] == ["length", "error", "error", "length"]
    assert "shorten the prompt" in str(done[1].error) and "empty" in str(done[2].error)
    assert done[0].tokens == alone("one", max_new_tokens=20) and done[0].error is None
    assert done[3].tokens == alone("three", max_new_tokens=20)
    assert open_slots(session) == 0


def test_equal_prompts_of_a_batch_are_drawn_independently() -> None:
    session = toy_session("anpd")
    request: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.0, "seed": 3}
    done = session.generate_batch(["the same"] * 3, **request)
    assert len({tuple(each.tokens) for each in done}) == 3
    for place, each in enumerate(done):
        seed = request["seed"] + (place << 64)
        assert each.tokens == alone("the same", **{**request, "seed": seed})


def test_what_was_read_for_one_text_is_not_read_again_for_the_next() -> None:
    session = toy_session("plain")
    system = "a long system prompt that all requests share. "
    first = session.generate(system + "one", max_new_tokens=5)
    second = session.generate(system + "two", max_new_tokens=5)
    assert (first.cached_tokens, second.cached_tokens) == (0, len(system))
    assert second.stats.reused == len(system)
    samples = session.generate_batch([system + "six"] * 3, max_new_tokens=4)
    assert [each.cached_tokens for each in samples] == [len(system)] * 3


@cache
def _said_alone(prompt: str, temperature: float, seed: int) -> list[int]:
    return alone(prompt, max_new_tokens=25, temperature=temperature, seed=seed)


@each_temperature
@each_method
def test_threads_share_a_session(method: str, temperature: float) -> None:
    session = toy_session(method)
    prompts = [f"{number} and some words of text {number}" for number in range(12)]

    def write(place: int) -> list[int]:
        options = {"max_new_tokens": 25, "temperature": temperature, "seed": place}
        if place % 2:
            return session.generate(prompts[place], **options).tokens
        stream = session.stream(prompts[place], **options)
        list(stream)
        return stream.completion.tokens

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(write, range(len(prompts))))
    for place, tokens in enumerate(texts):
        assert tokens == _said_alone(prompts[place], temperature, place)
    assert open_slots(session) == 0


def test_texts_of_threads_that_wait_together_go_on_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = toy_session("plain")
    assert isinstance(session.target, ToyTarget)
    entered, go, joining, begin = Event(), Event(), Semaphore(0), session.texts.begin

    def join(*text: Any) -> Any:
        joining.release()
        return begin(*text)

    monkeypatch.setattr(session.texts, "begin", join)

    def hold(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        entered.set()
        assert go.wait(30)
        return scores

    with ThreadPoolExecutor(3) as pool:
        held = pool.submit(session.generate, "held", max_new_tokens=40, processors=(hold,))
        assert entered.wait(30)
        others = [
            pool.submit(session.generate, f"other {place}", max_new_tokens=40) for place in range(2)
        ]
        for _ in range(3):  # two wait for their turn to join
            assert joining.acquire(timeout=30)
        before = session.target.passes
        go.set()
        assert [len(each.result(60).tokens) for each in (held, *others)] == [40] * 3
    # One after the other they would take 39 + 40 + 40 passes more.
    assert session.target.passes - before < 90


class OneAtATime(ToyTarget):
    """Cannot run passes of two threads at once."""

    running = False

    def score(self, *work: Any) -> Any:
        assert not self.running
        self.running = True
        sleep(0.001)
        self.running = False
        return super().score(*work)


def test_sessions_on_one_target_take_turns() -> None:
    tokenizer = byte_tokenizer()
    target = OneAtATime(vocab_size=len(tokenizer), order=2, sharpness=3.0, max_context=4096)
    sessions = [Session(target, tokenizer, method) for method in ("plain", "anpd")]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda each: each.generate("one", max_new_tokens=30), sessions)
        tokens = [each.tokens for each in done]
    assert tokens == [alone("one", max_new_tokens=30, ignore_eos=True)] * 2

    def ask(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found.append(sessions[1].generate("two", max_new_tokens=3).tokens)
        return scores

    found: list[list[int]] = []
    sessions[0].generate("one", max_new_tokens=2, processors=(ask,))
    assert found == [alone("two", max_new_tokens=3, ignore_eos=True)] * 2


def test_a_process_forked_within_a_round_is_told_so_and_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, entered, go = toy_session("plain"), Event(), Event()

    def hold(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        entered.set()
        assert go.wait(30)
        return scores

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(session.generate, "held", max_new_tokens=1, processors=(hold,))
        assert entered.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(shared_batch, "getpid", lambda: -1)
            with pytest.raises(UsageError, match="was forked while a text was being written"):
                session.generate("two", max_new_tokens=3)
        go.set()
        held.result(30)
    monkeypatch.setattr(shared_batch, "getpid", lambda: -2)  # between rounds all is well
    assert session.generate("two", max_new_tokens=3).tokens == alone("two", max_new_tokens=3)


@pytest.mark.parametrize("polled", [False, True])
def test_the_last_round_is_not_lost_while_it_is_being_handed_out(polled: bool) -> None:
    """Another thread has played a text's last round and dropped it, and hands it out only now."""
    session = toy_session("plain")
    text = session.texts.begin(lambda drafter: Generation([1], drafter, Stopping(1)))
    shared = session.texts
    with ThreadPoolExecutor(1) as pool:

        def hand_out() -> tuple[Round, Future[Any]]:
            (last,) = shared._batch.step({text.key})
            assert text.generation.finished and text.key not in shared._batch
            waiting = pool.submit(shared.take_rounds if polled else shared.next_round, text)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)  # not that the text has ended
            text.heard.append(last)
            return last, waiting

        last, waiting = shared.turn.during(hand_out)
        assert waiting.result(30) == (([last], False) if polled else last)
    assert shared.next_round(text) is None


def test_a_text_that_is_awaited_twice_goes_on_until_nobody_awaits_it() -> None:
    session = toy_session("plain")
    stream, other = (session.stream(text, max_new_tokens=20) for text in ("one", "two"))
    with stream.awaited():
        next(stream)  # awaits it as well, and no longer
        assert stream._text is not None
        generation = stream._text.text.generation
        before = len(generation.output)
        next(other)
        assert len(generation.output) > before


def test_a_session_inside_its_own_round_is_an_error_and_no_deadlock() -> None:
    session = toy_session("anpd")

    def nested(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        session.generate("inside", max_new_tokens=2)
        return scores

    with pytest.raises(UsageError, match="from inside one of its own rounds"):
        session.generate("outside", max_new_tokens=4, processors=(nested,))
    assert session.generate("after", max_new_tokens=9).tokens == alone("after", max_new_tokens=9)


def test_a_stream_that_is_closed_inside_a_round_leaves_after_it() -> None:
    """As when a generator that holds it is collected there."""
    session = toy_session("anpd")
    other = session.stream("another text", max_new_tokens=30)
    next(other)

    def close(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        other.close()
        return scores

    done = session.generate("once upon a time", max_new_tokens=9, processors=(close,))
    assert done.tokens == alone("once upon a time", max_new_tokens=9)
    assert list(other) == [] and open_slots(session) == 0


def test_a_stream_may_be_collected_while_a_turn_is_given_up() -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon a time", max_new_tokens=50)
    next(stream)
    with session.texts.turn._held:  # the turn is over, and the lock about to be released
        stream.close()
    assert open_slots(session) == 0


class InterruptAt:
    """Raises where the n-th function of a file begins, as there Python handles signals."""

    def __init__(self, file: str, number: int) -> None:
        self.file, self.left = file, number

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        self.left -= frame.f_code.co_filename == self.file
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt


def test_an_interrupt_leaves_the_turn_to_others_wherever_it_comes() -> None:
    expected = alone("two", max_new_tokens=5)
    for number in count(1):
        session, found = toy_session("plain"), list[list[int]]()
        stream = session.stream("once upon a time", max_new_tokens=30)
        next(stream)
        interrupt = InterruptAt(shared_batch.__file__, number)
        sys.settrace(interrupt)
        try:
            with suppress(KeyboardInterrupt):
                next(stream)
        finally:
            sys.settrace(None)
        thread = Thread(target=write_two, args=(session, found), daemon=True)
        thread.start()
        thread.join(30)
        assert found == [expected]
        write_two(session, found)
        assert found == [expected] * 2
        if interrupt.left > 0:
            assert number > 10
            return


def write_two(session: Session, found: list[list[int]]) -> None:
    found.append(session.generate("two", max_new_tokens=5).tokens)


def test_an_interrupt_between_draft_and_walk_loses_nothing(monkeypatch: Any) -> None:
    session = toy_session("anpd")
    stream = session.stream("once upon a time", max_new_tokens=30)
    other = session.stream("another text", max_new_tokens=30)
    next(stream), next(other)
    score = session.target.score

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(session.target, "score", score)
        raise KeyboardInterrupt

    monkeypatch.setattr(session.target, "score", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    list(stream), list(other)
    assert stream.completion.tokens == alone("once upon a time", max_new_tokens=30)
    assert other.completion.tokens == alone("another text", max_new_tokens=30)


def test_texts_that_heard_tokens_which_were_not_committed_end(monkeypatch: Any) -> None:
    session = toy_session("anpd")
    stream, other = (session.stream(text, max_new_tokens=30) for text in ("one", "two"))
    next(stream), next(other)

    def failing(paths: Any) -> None:
        raise MemoryError("no room")

    commit = session.target.commit
    monkeypatch.setattr(session.target, "commit", failing)
    with pytest.raises(MemoryError, match="no room"):
        list(stream)
    monkeypatch.setattr(session.target, "commit", commit)
    assert list(stream) == [] and stream.completion.finish_reason == "error"
    list(other)  # it took no part
    assert other.completion.tokens == alone("two", max_new_tokens=30)
    assert open_slots(session) == 0


WINDOWS: dict[str, Callable[[Session, Stream], tuple[object, str]]] = {
    "the planner learns": lambda session, _: (session.texts._batch._planner, "observe"),
    "the round is filed": lambda session, _: (session.texts._batch, "step"),
    "it is handed out": lambda session, _: (session.texts, "next_round"),
    "it is read": lambda *_: (OutputText, "push"),
    "it is counted": lambda _, stream: (stream.stats, "add"),
    "it is shown": lambda *_: (OutputText, "release"),
}


@pytest.mark.parametrize("at", [6, 30])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_text_that_an_interrupt_has_robbed_of_tokens_ends(
    window: str, at: int, monkeypatch: Any
) -> None:
    """In the middle, and at its last token."""
    session = toy_session("plain")
    stream = session.stream("once upon a time", max_new_tokens=30)
    other = session.stream("another text", max_new_tokens=30)
    next(other)
    owner, method = WINDOWS[window](session, stream)
    real, calls = getattr(owner, method), 0

    def interrupted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*args, **named)
        if calls == at:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, method, interrupted)
    for _ in range(2):  # not as if it ended where it was interrupted
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    part = stream.completion
    assert part.finish_reason == "interrupted" and isinstance(part.error, KeyboardInterrupt)
    assert part.tokens == alone("once upon a time", max_new_tokens=30)[: len(part.tokens)]
    assert at - 1 <= len(part.tokens) <= at
    assert part.text == session.tokenizer.decode(part.tokens).rstrip("�")
    list(other)  # it took no part
    assert other.completion.tokens == alone("another text", max_new_tokens=30)
    assert open_slots(session) == 0


class FailsToLearn(Plain):
    """Raises from its third round on."""

    rounds = 0

    def observe(self, round: Round) -> None:
        self.rounds += 1
        if self.rounds >= 3:
            raise ValueError("this drafter has failed")


def test_a_drafter_that_fails_to_learn_is_an_error_of_its_text() -> None:
    session = toy_session(FailsToLearn)
    (done,) = session.generate_batch(["one"], max_new_tokens=9)
    assert done.finish_reason == "error" and str(done.error) == "this drafter has failed"
    assert done.tokens == alone("one", max_new_tokens=9)[: len(done.tokens)]
    session.generate("two", max_new_tokens=2)  # with another drafter


@pytest.mark.parametrize("kind", [IndexError, BaseException])
def test_a_text_that_cannot_be_decoded_fails_alone(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic in a tokenizer written in Rust is no `Exception`."""
    push, calls = OutputText.push, 0

    def fifth_fails(output: OutputText, token: int) -> bool:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise kind("piece id is out of range")
        return push(output, token)

    monkeypatch.setattr(OutputText, "push", fifth_fails)
    session = toy_session("anpd")
    failed, done = session.generate_batch(["one", "two"], max_new_tokens=9)
    assert str(failed.error) == "piece id is out of range" and failed.finish_reason == "error"
    assert failed.tokens == alone("one", max_new_tokens=9)[: len(failed.tokens)]
    assert done.tokens == alone("two", max_new_tokens=9) and open_slots(session) == 0


def test_rounds_that_wait_for_their_texts_owner_hold_no_logits() -> None:
    session = toy_session("anpd")
    streams = [session.stream(text, max_new_tokens=20, logprobs=2) for text in ("one", "two")]
    with ExitStack() as awaited:
        for stream in streams:
            awaited.enter_context(stream.awaited())
        for _ in range(4):
            session.texts.play()
        waiting = [round for text in session.texts._open.values() for round in text.heard]
        assert len(waiting) == 8
        assert all(round.logits.untyped_storage().nbytes() == 0 for round in waiting)
        assert all(len(round.logprobs) == len(round.path.tokens) for round in waiting)
        done = [stream.run() for stream in streams]
    assert [each.tokens for each in done] == [alone(t, max_new_tokens=20) for t in ("one", "two")]


class EveryOther:
    """A processor that keeps state: at every other token, even ids are out."""

    def __init__(self) -> None:
        self.calls = 0
        self.part = torch.nn.Linear(2, 2)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 2:
            scores[:, ::2] = -torch.inf
        return scores


def test_texts_of_a_batch_have_processors_of_their_own() -> None:
    mine, prompts = EveryOther(), ["one", "two two"]
    done = toy_session("anpd").generate_batch(prompts, processors=(mine,), max_new_tokens=9)
    assert [each.tokens for each in done] == [
        alone(prompt, processors=(EveryOther(),), max_new_tokens=9) for prompt in prompts
    ]
    assert mine.calls == 0
    toy_session().generate_batch(["one"], processors=(mine,), max_new_tokens=9)
    assert mine.calls == 9  # a single text needs no copy


def test_what_keeps_no_state_is_not_copied() -> None:
    stateful, stateless = EveryOther(), EveryOther()
    stateless.stateless = True  # type: ignore[attr-defined]
    texts = [*Options(processors=(stateful, stateless)).of_texts(2)]
    assert all(each.processors[1] is stateless for each in texts)
    copies = [each.processors[0] for each in texts]
    assert len({id(each) for each in (stateful, *copies)}) == 3
    assert all(each.part is stateful.part for each in copies)  # type: ignore[attr-defined]


def test_a_processor_that_cannot_be_copied_serves_one_text_alone() -> None:
    locked = EveryOther()
    locked.lock = Lock()  # type: ignore[attr-defined]
    session = toy_session()
    with pytest.raises(UsageError, match="cannot be copied for each text"):
        session.generate_batch(["one", "two"], processors=(locked,), max_new_tokens=9)
    assert len(session.generate("one", processors=(locked,), max_new_tokens=9).tokens) == 9


@pytest.fixture(scope="module")
def default(default_model: Session) -> Session:
    return on_its_model(default_model, "anpd")


@pytest.mark.model
def test_two_streams_on_the_default_model(default: Session) -> None:
    """The case that wrote wrong text: paused after its first chunk, another text between."""
    expected = {
        prompt: default.generate(prompt, max_new_tokens=24).tokens
        for prompt in ("The capital of France is", "def fibonacci(n):")
    }
    stream: Stream = default.stream("The capital of France is", max_new_tokens=24)
    next(stream)
    between = default.generate("def fibonacci(n):", max_new_tokens=24)
    list(stream)
    assert stream.completion.tokens == expected["The capital of France is"]
    assert between.tokens == expected["def fibonacci(n):"]


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_threads_on_the_default_model(default: Session, temperature: float) -> None:
    prompts = ["Name three colours.", "def fibonacci(n):", "Once upon a time", "1, 2, 3, 4, 5,"]
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": temperature, "seed": 1}
    expected = [default.generate(prompt, **options).tokens for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: default.generate(prompt, **options), prompts))
    assert [each.tokens for each in found] == expected
    assert all(isinstance(each.stats.rounds, int) and each.stats.rounds for each in found)


def test_samples_of_one_prompt_read_it_once() -> None:
    session = toy_session("anpd")
    assert isinstance(session.target, ToyTarget)
    prompt = "a prompt of which several samples are wanted"
    done = session.generate_batch([prompt] * 5, max_new_tokens=12, temperature=1.0)
    assert [each.cached_tokens for each in done] == [0, *[len(prompt) - 1] * 4]
    assert session.target.read == len(prompt) - 1
    for place, each in enumerate(done):
        options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0}
        assert each.tokens == alone(prompt, **options, seed=place << 64)
