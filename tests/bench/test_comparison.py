"""Contenders side by side: what is run, in which order, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from paceline.bench import comparison as module
from paceline.bench.comparison import Comparison
from paceline.bench.entries import Difference, Entry, LeftOut, parse_line
from paceline.bench.metrics import Group, summarise
from paceline.bench.suites import Text
from paceline.bench.trial import Contender, Method
from paceline.drafters import Plain
from paceline.errors import UsageError
from paceline.options import Options
from paceline.prompts import PromptRecord
from paceline.records import TextStart
from paceline.session import Session
from paceline.tree import EMPTY
from tests.bench import rig
from tests.bench.conftest import NameMethods
from tests.bench.rig import ClockedTarget, Fixed, clocked_session, cost, lines_of, runner_up
from tests.helpers import Oracle
from tests.tiny import toy_session

PROMPT = PromptRecord("story", ("once upon a time",))
TALK = PromptRecord("talk", ("hello", "go on", "and then"))
GREEDY = Options(max_new_tokens=24, ignore_eos=True)
FOUR = Options(max_new_tokens=24, ignore_eos=True, budget=4)
TWO = Options(max_new_tokens=2)


def comparison(
    session: Session,
    contenders: Sequence[str | Contender],
    prompts: Sequence[PromptRecord] = (PROMPT,),
    options: Options = GREEDY,
    repeats: int = 1,
) -> Comparison:
    return rig.comparison(session, contenders, prompts, options, repeats)


def found_by(comparison: Comparison, on_trial: Callable[[], None] = lambda: None) -> Group:
    """What a run finds over all texts."""
    return summarise(lines_of(comparison, on_trial)[0]).overall


def differences(group: Group, method: str) -> list[Difference]:
    return [each for found in group.methods[method].differences.values() for each in found]


@dataclass
class Start:
    """What a drafter was started with."""

    method: str
    context: list[int]
    references: list[list[int]]


class Notes(Plain):
    """Plain decoding that writes down what it is started with."""

    def __init__(self, name: str, starts: list[Start]) -> None:
        self.name, self.starts = name, starts

    def start(self, text: TextStart) -> None:
        references = list(map(list, text.references))
        self.starts.append(Start(self.name, list(text.context), references))


@pytest.fixture
def starts(name_methods: NameMethods) -> list[Start]:
    """Every start of the drafters "plain", "a" and "b", all of which decode plainly."""
    found: list[Start] = []
    name_methods({name: partial(Notes, name, found) for name in ("plain", "a", "b")})
    return found


def answer(session: Session) -> tuple[list[int], list[int]]:
    """The tokens of PROMPT, and the 24 that plain decoding continues with."""
    ids = session.encode([{"role": "user", "content": PROMPT.turns[0]}])
    return ids, session.generate(ids, max_new_tokens=24, ignore_eos=True).tokens


def with_oracle(
    name_methods: NameMethods,
) -> tuple[Session, ClockedTarget, list[int], list[int]]:
    """A session whose "oracle" guesses `options.budget` right tokens at a time, and `answer`'s."""
    session, target = clocked_session()
    ids, tokens = answer(session)
    name_methods({"oracle": lambda: Oracle([*ids, *tokens], target.vocab_size)})
    return session, target, ids, tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_is_identical_to_plain_decoding(temperature: float) -> None:
    options = Options(max_new_tokens=40, temperature=temperature, seed=3)
    prompts = [PROMPT, PromptRecord("raw", ("x y x y x",), raw=True)]
    session, _ = clocked_session()
    entries, _ = lines_of(comparison(session, ["anpd", "llma", "pld"], prompts, options, 2))
    assert len(entries) == 2 * 4 * 2
    group = summarise(entries).overall
    for method in group.methods.values():
        assert method.identical
        assert method.tokens == group.methods["plain"].tokens
        assert [key[1] for key in method.speedups] == ["story", "raw"]


def test_typical_acceptance_is_lossy_and_not_compared(name_methods: NameMethods) -> None:
    options = replace(GREEDY, temperature=1.0, typical=True, budget=8)
    session, *_ = with_oracle(name_methods)  # it guesses the likeliest tokens, not those drawn
    entries, _ = lines_of(comparison(session, ["oracle"], options=options, repeats=2))
    assert [(entry.method, entry.lossy) for entry in entries] == [
        ("plain", False),
        ("oracle", True),
        ("oracle", True),
        ("plain", False),
    ]
    found = summarise(entries).overall.methods
    assert found["oracle"].lossy and not found["oracle"].identical
    assert not found["oracle"].differences
    assert found["plain"].identical and not found["plain"].lossy
    # It is another text, which would be noted of a lossless method; the file keeps both.
    assert any(entry.lossy and entry.output for entry in entries)
    assert [parse_line(entry.to_json()) for entry in entries] == entries
    assert ["lossy" in entry.to_json() for entry in entries] == [False, True, True, False]


def test_only_what_differs_from_plain_decoding_keeps_its_tokens() -> None:
    session, _ = clocked_session()
    ids, tokens = answer(session)
    wrong = Fixed("wrong", [[*tokens[:-1], tokens[-1] + 1]])
    entries, _ = lines_of(comparison(session, ["anpd", wrong], repeats=2))
    kept = [(entry.method, entry.repeat, entry.output is not None) for entry in entries]
    assert sorted(kept) == [
        ("anpd", 0, False),
        ("anpd", 1, False),
        ("plain", 0, True),
        ("plain", 1, False),
        ("wrong", 0, True),
        ("wrong", 1, True),
    ]
    assert {entry.prompt_tokens for entry in entries} == {len(ids)}


def test_every_contender_meets_every_place(starts: list[Start]) -> None:
    order: list[str] = []
    prompts = [PROMPT, PromptRecord("other", ("twice upon",)), PromptRecord("third", ("x",))]
    whole = comparison(toy_session(), ["a", "b"], prompts, TWO, 3)
    whole.run([], on_trial=lambda: order.append(starts[-1].method))
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(rounds) == 9
    # Repeats go through all prompts: no method has just met the one that it is given.
    for prompt in (rounds[0::3], rounds[1::3], rounds[2::3]):
        assert prompt[0][0] == "plain"  # the others are compared with what it writes there
        for place in range(3):
            assert sorted(names[place] for names in prompt) == ["a", "b", "plain"]


def test_with_one_repeat_the_places_change_from_prompt_to_prompt(starts: list[Start]) -> None:
    order: list[str] = []
    prompts = [PromptRecord(str(number), ("once",)) for number in range(2)]
    whole = comparison(toy_session(), ["a", "b"], prompts, TWO)
    whole.run([], on_trial=lambda: order.append(starts[-1].method))
    assert order == ["plain", "a", "b", "plain", "b", "a"]


def test_an_oracle_gains_what_it_guesses(name_methods: NameMethods) -> None:
    session, _, _, _ = with_oracle(name_methods)
    group = found_by(comparison(session, ["oracle"], options=FOUR, repeats=2))
    oracle, plain = group.methods["oracle"], group.methods["plain"]
    # Four guesses and a bonus token a round, and three guesses before the last token.
    assert oracle.stats.acceptance_histogram == {5: 4, 4: 1}
    assert oracle.stats.depth_histogram == {4: 4, 3: 1}
    assert oracle.stats.mean_acceptance_length == 24 / 5
    assert oracle.stats.draft_acceptance_rate == 1.0
    assert (oracle.tokens, oracle.stats.tokens) == (24, 24)
    assert oracle.identical
    assert plain.stats.rounds == 24
    assert plain.stats.mean_acceptance_length == 1.0
    assert plain.stats.draft_acceptance_rate == 0.0


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_wrong_token_is_found_with_its_logit_gap(name_methods: NameMethods, repeats: int) -> None:
    session, target, ids, tokens = with_oracle(name_methods)
    # One guess and a bonus token a round: a round begins after ten tokens.
    target.wrong_at = len(ids) + 10
    options = Options(max_new_tokens=24, ignore_eos=True, budget=1)
    group = found_by(comparison(session, ["oracle", "pld"], options=options, repeats=repeats))
    slot = target.open([*ids, *tokens[:10]])
    row = target.score({slot: EMPTY})[slot][0]
    wrong = runner_up(row)
    gap = float(row[tokens[10]] - row[wrong])
    assert gap > 0
    assert differences(group, "oracle") == [Difference(10, tokens[10], wrong, gap)] * repeats
    assert not group.methods["oracle"].identical
    assert group.methods["plain"].identical


def test_a_wrong_token_in_one_repeat_only_is_found(name_methods: NameMethods) -> None:
    session, target, ids, _ = with_oracle(name_methods)
    trials: list[int] = []

    def on_trial() -> None:
        trials.append(1)
        target.wrong_at = len(ids) + 10 if len(trials) in (2, 3) else None

    group = found_by(comparison(session, ["oracle"], options=FOUR, repeats=3), on_trial)
    assert len(trials) == 6
    assert [found.position for found in differences(group, "oracle")] == [10]
    assert group.methods["plain"].identical


def test_plain_decoding_that_contradicts_itself_is_found() -> None:
    session, target = clocked_session()
    ids, tokens = answer(session)
    target.always = True

    def on_trial() -> None:
        target.wrong_at = len(ids) + 3

    group = found_by(comparison(session, [], repeats=2), on_trial)
    (found,) = differences(group, "plain")
    assert (found.position, found.plain_token) == (3, tokens[3])


def test_a_difference_that_cannot_be_scored_is_that_trials_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("out of memory")

    session, _ = clocked_session()
    monkeypatch.setattr(module, "difference", full)
    entries, _ = lines_of(comparison(session, [Fixed("wrong", [[1]]), "pld"]))
    errors = {entry.method: entry.error for entry in entries}
    assert errors == {"plain": "", "wrong": "RuntimeError: out of memory", "pld": ""}


@pytest.mark.parametrize("shorter", ["plain", "other"])
def test_a_text_that_ends_elsewhere_is_a_difference(shorter: str) -> None:
    session, _ = clocked_session()
    _, tokens = answer(session)
    written = {"plain": tokens, "other": tokens} | {shorter: tokens[:5]}
    group = found_by(comparison(session, [Fixed(name, [out]) for name, out in written.items()]))
    ends = (None, tokens[5]) if shorter == "plain" else (tokens[5], None)
    assert differences(group, "other") == [Difference(5, *ends, None)]


def test_turns_are_compared_one_by_one_on_plain_answers(starts: list[Start]) -> None:
    session = toy_session()
    comparison(session, ["a"], [TALK]).run([])
    messages: list[dict[str, str]] = []
    expected = []
    for turn in TALK.turns:
        messages.append({"role": "user", "content": turn})
        expected.append(session.encode(messages))
        reply = session.generate(messages, max_new_tokens=24, ignore_eos=True)
        messages.append({"role": "assistant", "content": reply.text})
    assert [start.context for start in starts if start.method == "a"][1:] == expected


def test_the_answers_in_between_are_plain_decodings_first(starts: list[Start]) -> None:
    session = toy_session()
    answers = [session.encode(text) for text in ("first", "second", "third", "fourth")]
    fixed = Fixed("plain", [[1], *answers])
    comparison(
        session, [fixed, Fixed("other", [session.encode("never")]), "a"], [TALK], TWO, 2
    ).run([])
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "second"},
        {"role": "user", "content": "and then"},
    ]
    assert starts[-1].context == session.encode(messages)


@pytest.mark.parametrize("template", [True, False])
def test_turns_of_raw_text_are_one_text(starts: list[Start], template: bool) -> None:
    session = toy_session()
    if not template:
        session.tokenizer.chat_template = None
    prompt = PromptRecord("joined", ("hello", "go on"), raw=template)
    whole = comparison(session, ["a"], [prompt], TWO, repeats=3)
    entries, _ = lines_of(whole)
    assert (starts[-1].method, starts[-1].context) == ("a", session.encode("hello\n\ngo on"))
    assert {entry.key for entry in entries} == {("suite", "joined", 0)}
    assert whole.trials == 2 * 3


def test_references_reach_every_method(starts: list[Start]) -> None:
    session = toy_session()
    prompt = PromptRecord("cited", ("hello",), references=("one", "two"))
    run_one = comparison(session, ["a"], [prompt], TWO)
    run_one.run([])
    expected = session.encode_references(["one", "two"])
    assert [start.references for start in starts] == [expected] * 4


def test_every_trial_reads_its_whole_prompt() -> None:
    session, target = clocked_session()
    ids, _ = answer(session)
    target.opened.clear()
    comparison(session, ["anpd"], repeats=2).run([])
    # Before each text the cache is emptied of all that another trial has read.
    assert target.opened[-4:] == [(ids, 0)] * 4


def test_trials_are_counted_before_they_are_run() -> None:
    prompts = [PROMPT, TALK, PromptRecord("raw", ("a", "b"), raw=True)]
    session, trials = toy_session(), []
    whole = comparison(session, ["anpd"], prompts, TWO, 2)
    assert whole.trials == 5 * 2 * 2
    whole.run([], on_trial=lambda: trials.append(1))
    assert len(trials) == whole.trials


def test_end_and_stop_strings_end_the_compared_texts() -> None:
    session = toy_session()
    ids, tokens = answer(session)
    session.eos_ids = (tokens[7],)
    length = tokens.index(tokens[7]) + 1
    for options, count in ((Options(max_new_tokens=24), length), (GREEDY, 24)):
        (_, pld), _ = lines_of(comparison(session, ["pld"], options=options))
        assert (pld.tokens, pld.output) == (count, None)
    text = session.generate(ids, max_new_tokens=24, ignore_eos=True).text
    stop = next(letter for letter in text if letter.isascii())
    (_, stopped), _ = lines_of(comparison(session, ["pld"], options=GREEDY.with_(stop=stop)))
    assert stopped.tokens < 24
    assert stopped.output is None


def test_a_crash_is_recorded_and_the_others_go_on() -> None:
    session, _ = clocked_session()
    crashing = Fixed("crashing", [[1], ValueError("it\nbroke"), [1], UsageError("no such thing")])
    entries, _ = lines_of(comparison(session, [crashing, "pld"], repeats=3))
    assert len(entries) == 9
    errors = [entry.error for entry in entries if entry.error]
    assert errors == ["ValueError: it broke", "no such thing"]
    group = summarise(entries).overall
    assert list(group.methods) == ["plain", "pld"]
    assert group.methods["pld"].identical
    assert group.failed == {"crashing": "no such thing"}


def test_a_crash_on_one_text_spoils_no_other(name_methods: NameMethods) -> None:
    session, _ = clocked_session()
    prompts = [PromptRecord("one", ("once",)), PromptRecord("two", ("twice",))]
    crashing = Fixed("crashing", [[1], RuntimeError("out of memory"), [1]])
    group = found_by(comparison(session, [crashing], prompts))
    found = group.methods["crashing"]
    assert found.failures == {("suite", "one", 0): "RuntimeError: out of memory"}
    assert (found.texts, list(found.speedups)) == (1, [("suite", "two", 0)])
    assert group.methods["plain"].texts == 2


def test_without_an_answer_of_plain_decoding_a_conversation_ends() -> None:
    session, _ = clocked_session()
    plain = Fixed("plain", [[1], [2], RuntimeError("broken"), [3]])
    entries, left_out = lines_of(comparison(session, [plain, "pld"], [TALK, PROMPT], TWO))
    assert left_out == [LeftOut("suite", "", "talk", 2, "plain decoding failed on an earlier turn")]
    group = summarise(entries).overall
    assert group.methods["plain"].failures == {("suite", "talk", 1): "RuntimeError: broken"}
    assert list(group.methods["pld"].speedups) == [("suite", "talk", 0), ("suite", "story", 0)]


def test_texts_that_do_not_fit_are_left_out_with_a_reason() -> None:
    session, target = clocked_session()
    ids, _ = answer(session)
    grows = PromptRecord("grows", ("once", "x" * 5000, "never asked"))
    long = PromptRecord("long", ("x" * 5000,))
    entries, left_out = lines_of(comparison(session, ["pld"], [long, grows, PROMPT]))
    reason = "prompt and 24 new tokens do not fit into the model's context of 4096"
    assert left_out == [
        LeftOut("suite", "", "long", 0, reason),
        LeftOut("suite", "", "grows", 1, reason),
    ]
    assert {entry.key[1:] for entry in entries} == {("grows", 0), ("story", 0)}
    target.max_context = len(ids) + 24
    entries, _ = lines_of(comparison(session, []))
    assert [entry.tokens for entry in entries] == [24]


def test_what_was_measured_is_not_measured_again() -> None:
    session, target = clocked_session()
    whole = comparison(session, ["pld"], [PROMPT, TALK, PromptRecord("long", ("x" * 5000,))])
    sink: list[Entry | LeftOut] = []
    whole.run(sink)
    entries, passes = list(sink), target.passes
    trials: list[int] = []
    whole.run(sink, lambda: trials.append(1))
    assert (sink, target.passes, len(trials)) == (entries, passes, 2 * 4)


def test_the_first_trial_is_as_warm_as_any() -> None:
    session, _ = clocked_session()
    (first, second), _ = lines_of(comparison(session, [], repeats=2))
    assert first.seconds == second.seconds > 24 * cost(1)


@pytest.mark.parametrize(
    ("prompts", "contenders", "repeats", "words"),
    [
        ([], ["anpd"], 1, "at least one prompt"),
        ([PROMPT, PROMPT], ["anpd"], 1, "story' is the id of several prompts"),
        ([PROMPT], ["plain", "pld", "pld"], 1, "'pld' is the name of several methods"),
        ([PROMPT], ["plain"], 0, "repeats must be at least 1, got 0"),
        ([PROMPT], ["plain", "anpdd"], 1, "did you mean anpd"),
        ([PROMPT], ["plain", "anpd:q=1"], 1, "no setting 'q'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    prompts: list[PromptRecord], contenders: list[str], repeats: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        comparison(toy_session(), contenders, prompts, repeats=repeats)
    assert "\n" not in str(caught.value)


def test_plain_decoding_has_to_come_first() -> None:
    session = toy_session()
    for names in (["pld", "plain"], ["pld"], []):
        made = [Method(name, session) for name in names]
        with pytest.raises(UsageError, match="plain decoding must be the first"):
            Comparison(session, made, [Text("suite", PROMPT)], GREEDY)
