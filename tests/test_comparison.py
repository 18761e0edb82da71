"""Methods side by side: what is run, in which order, and what is reported of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import paceline.comparison
from paceline.comparison import (
    Mismatch,
    PromptRecord,
    compare,
    count_trials,
    report_as_json,
)
from paceline.drafters import Plain, make_drafter
from paceline.errors import UsageError
from paceline.options import Options
from paceline.protocols import Drafter
from paceline.session import Session
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree
from tests.helpers import Oracle
from tests.tiny import byte_tokenizer, toy_session

PROMPT = PromptRecord("story", ("once upon a time",))
GREEDY = Options(max_new_tokens=24, ignore_eos=True)
FOUR = Options(max_new_tokens=24, ignore_eos=True, budget=4)
KEYS = {
    "method",
    "tokens_per_second",
    "speedup",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "identical",
    "mismatches",
}


class PlantedTarget(ToyTarget):
    """A toy that can be made slow, short, or wrong.

    pause: seconds that a pass takes.
    wrong_at: length of the text whose next token is another than it should be, in passes that
    score a tree.
    always: in passes without a tree as well.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, order=2, sharpness=3.0, max_context=4096)
        self.pause = 0.0
        self.wrong_at: int | None = None
        self.always = False
        self.synced: list[list[int]] = []

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        super().sync(contexts)
        self.synced.append(list(contexts[0]))

    def score(self, trees: Sequence[Tree]) -> list[torch.Tensor]:
        time.sleep(self.pause)
        return super().score(trees)

    def _score_one(self, context: Sequence[int], tree: Tree) -> torch.Tensor:
        rows = super()._score_one(context, tree)
        if len(context) == self.wrong_at and (self.always or len(tree)):
            rows = rows.clone()
            rows[0, runner_up(rows[0])] = 100.0
        return rows


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

    def start(self, context: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self.starts.append(Start(self.name, list(context), list(map(list, references))))


def runner_up(row: torch.Tensor) -> int:
    return int(row.topk(2).indices[1])


def planted_session() -> tuple[Session, PlantedTarget]:
    tokenizer = byte_tokenizer()
    target = PlantedTarget(len(tokenizer))
    return Session(target, tokenizer, "plain", eos_ids=[tokenizer.eos_token_id]), target


def answer(session: Session) -> tuple[list[int], list[int]]:
    """The tokens of PROMPT, and the 24 that plain decoding continues with."""
    ids = session.encode([{"role": "user", "content": PROMPT.turns[0]}])
    return ids, session.generate(ids, max_new_tokens=24, ignore_eos=True).tokens


NameMethods = Callable[[Mapping[str, Callable[[], Drafter]]], None]


@pytest.fixture
def name_methods(monkeypatch: pytest.MonkeyPatch) -> NameMethods:
    """Make `compare` know drafters by names of the test's own."""

    def register(makers: Mapping[str, Callable[[], Drafter]]) -> None:
        monkeypatch.setattr(
            paceline.comparison,
            "make_drafter",
            lambda name: makers[name]() if name in makers else make_drafter(name),
        )

    return register


@pytest.fixture
def starts(name_methods: NameMethods) -> list[Start]:
    """Every start of the drafters "plain", "a" and "b", all of which decode plainly."""
    found: list[Start] = []
    name_methods({name: partial(Notes, name, found) for name in ("plain", "a", "b")})
    return found


def name_oracle(session: Session, name_methods: NameMethods) -> tuple[list[int], list[int]]:
    """Let "oracle" guess `options.budget` right tokens at a time; returns `answer`'s."""
    ids, tokens = answer(session)
    name_methods({"oracle": lambda: Oracle([*ids, *tokens], len(session.tokenizer))})
    return ids, tokens


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        (["anpd", "llma"], ["plain", "anpd", "llma"]),
        (["anpd", "plain"], ["plain", "anpd"]),
        (["pld", "pld"], ["plain", "pld"]),
        (["anpd:n=3,k=2", "anpd"], ["plain", "anpd:n=3,k=2", "anpd"]),
        (["plain"], ["plain"]),
        ([], ["plain"]),
    ],
)
def test_plain_decoding_comes_first_and_every_method_once(
    methods: list[str], names: list[str]
) -> None:
    result = compare(toy_session(), [PROMPT], methods, GREEDY, repeats=1)
    assert list(result.methods) == names
    assert result.speedup("plain") == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_is_identical_to_plain_decoding(temperature: float) -> None:
    options = Options(max_new_tokens=40, temperature=temperature, seed=3)
    prompts = [PROMPT, PromptRecord("raw", ("x y x y x",), raw=True)]
    result = compare(toy_session(), prompts, ["anpd", "llma", "pld"], options, repeats=2)
    for report in result.methods.values():
        assert report.identical
        assert report.tokens == result.methods["plain"].tokens
        assert list(report.speedups) == ["story", "raw"]


def test_every_method_meets_every_place(
    starts: list[Start],
) -> None:
    order: list[str] = []
    prompts = [PROMPT, PromptRecord("other", ("twice upon",))]
    compare(
        toy_session(),
        prompts,
        ["a", "b"],
        Options(max_new_tokens=2),
        repeats=3,
        on_trial=lambda: order.append(starts[-1].method),
    )
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(rounds) == 6
    assert all(sorted(names) == ["a", "b", "plain"] for names in rounds)
    for prompt in (rounds[:3], rounds[3:]):
        for place in range(3):
            assert sorted(names[place] for names in prompt) == ["a", "b", "plain"]


def test_with_one_repeat_the_places_change_from_prompt_to_prompt(
    starts: list[Start],
) -> None:
    order: list[str] = []
    prompts = [PromptRecord(str(number), ("once",)) for number in range(3)]
    compare(
        toy_session(),
        prompts,
        ["a", "b"],
        Options(max_new_tokens=2),
        repeats=1,
        on_trial=lambda: order.append(starts[-1].method),
    )
    assert sorted(order[::3]) == ["a", "b", "plain"]


def test_an_oracle_gains_what_it_guesses(name_methods: NameMethods) -> None:
    session = toy_session()
    name_oracle(session, name_methods)
    result = compare(session, [PROMPT], ["oracle"], FOUR, repeats=2)
    oracle, plain = result.methods["oracle"], result.methods["plain"]
    # Four guesses and a bonus token a round, and three guesses before the last token.
    assert oracle.stats.acceptance_histogram == {5: 4, 4: 1}
    assert oracle.stats.mean_acceptance_length == 24 / 5
    assert oracle.stats.draft_acceptance_rate == 1.0
    assert (oracle.tokens, oracle.stats.tokens) == (24, 24)
    assert oracle.identical
    assert plain.stats.rounds == 24
    assert plain.stats.mean_acceptance_length == 1.0
    assert plain.stats.draft_acceptance_rate == 0.0


def test_passes_saved_are_time_saved(name_methods: NameMethods) -> None:
    session, target = planted_session()
    name_oracle(session, name_methods)
    target.pause = 0.006
    result = compare(session, [PROMPT], ["oracle"], FOUR)
    saved = 24 / 5
    assert saved / 2 < result.speedup("oracle") < saved * 1.5
    assert result.methods["oracle"].speedups["story"] == pytest.approx(result.speedup("oracle"))
    assert result.methods["plain"].seconds > 24 * target.pause
    assert result.methods["plain"].tokens_per_second < 1 / target.pause


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_wrong_token_is_found_with_its_logit_gap(name_methods: NameMethods, repeats: int) -> None:
    session, target = planted_session()
    ids, tokens = name_oracle(session, name_methods)
    # One guess and a bonus token a round: a round begins after ten tokens.
    target.wrong_at = len(ids) + 10
    options = Options(max_new_tokens=24, ignore_eos=True, budget=1)
    result = compare(session, [PROMPT], ["oracle", "pld"], options, repeats)
    target.sync([[*ids, *tokens[:10]]])
    row = target.score([EMPTY])[0][0]
    wrong = runner_up(row)
    assert result.methods["oracle"].mismatches == [
        Mismatch("story", 10, tokens[10], wrong, float(row[tokens[10]] - row[wrong]))
    ]
    assert not result.methods["oracle"].identical
    assert result.methods["plain"].identical


def test_a_wrong_token_in_one_repeat_only_is_found(name_methods: NameMethods) -> None:
    session, target = planted_session()
    ids, _ = name_oracle(session, name_methods)
    trials: list[int] = []

    def on_trial() -> None:
        trials.append(1)
        target.wrong_at = len(ids) + 10 if len(trials) in (2, 3) else None

    result = compare(session, [PROMPT], ["oracle"], FOUR, repeats=3, on_trial=on_trial)
    assert len(trials) == 6
    assert [found.position for found in result.methods["oracle"].mismatches] == [10]
    assert result.methods["plain"].identical


def test_plain_decoding_that_contradicts_itself_is_found() -> None:
    session, target = planted_session()
    ids, tokens = answer(session)
    target.always = True

    def on_trial() -> None:
        target.wrong_at = len(ids) + 3

    result = compare(session, [PROMPT], [], GREEDY, repeats=2, on_trial=on_trial)
    (found,) = result.methods["plain"].mismatches
    assert (found.position, found.plain_token) == (3, tokens[3])


@pytest.mark.parametrize("shorter", ["plain", "pld"])
def test_a_text_that_ends_elsewhere_is_a_mismatch(shorter: str) -> None:
    session, target = planted_session()
    ids, tokens = answer(session)
    full, short = 4096, len(ids) + 5
    contexts = {"plain": full, "pld": full} | {shorter: short}
    target.max_context = contexts["plain"]

    def on_trial() -> None:  # plain decoding has been; the method is next
        target.max_context = contexts["pld"]

    result = compare(session, [PROMPT], ["pld"], GREEDY, repeats=1, on_trial=on_trial)
    ends = (None, tokens[5]) if shorter == "plain" else (tokens[5], None)
    assert result.methods["pld"].mismatches == [Mismatch("story", 5, *ends, None)]


def test_turns_are_compared_one_by_one_on_plain_answers(
    starts: list[Start],
) -> None:
    session = toy_session()
    prompt = PromptRecord("talk", ("hello", "go on", "and then"))
    result = compare(session, [prompt], ["a"], GREEDY, repeats=1)
    messages: list[dict[str, str]] = []
    expected = []
    for turn in prompt.turns:
        messages.append({"role": "user", "content": turn})
        expected.append(session.encode(messages))
        reply = session.generate(messages, max_new_tokens=24, ignore_eos=True)
        messages.append({"role": "assistant", "content": reply.text})
    assert [start.context for start in starts if start.method == "a"][1:] == expected
    for report in result.methods.values():
        assert list(report.speedups) == ["talk#1", "talk#2", "talk#3"]
        assert report.tokens == 3 * 24


@pytest.mark.parametrize("template", [True, False])
def test_turns_of_raw_text_are_one_text(starts: list[Start], template: bool) -> None:
    session = toy_session()
    if not template:
        session.tokenizer.chat_template = None
    prompt = PromptRecord("joined", ("hello", "go on"), raw=template)
    result = compare(session, [prompt], ["a"], GREEDY, repeats=1)
    assert (starts[-1].method, starts[-1].context) == ("a", session.encode("hello\n\ngo on"))
    assert list(result.methods["a"].speedups) == ["joined"]
    assert count_trials(session, [prompt], ["a"], 3) == 2 * 3


def test_references_reach_every_method(
    starts: list[Start],
) -> None:
    session = toy_session()
    prompt = PromptRecord("cited", ("hello",), references=("one", "two"))
    compare(session, [prompt], ["a"], GREEDY, repeats=1)
    expected = session.encode_references(["one", "two"])
    assert [start.references for start in starts[-2:]] == [expected, expected]


def test_every_trial_reads_its_whole_prompt() -> None:
    session, target = planted_session()
    ids, _ = answer(session)
    target.synced.clear()
    compare(session, [PROMPT], ["anpd"], GREEDY, repeats=2)
    # Before each text the cache is emptied of all that another trial has read.
    assert target.synced[-8:] == [ids[:1], ids] * 4


@pytest.mark.parametrize("methods", [["anpd"], ["plain", "anpd", "anpd"]])
def test_trials_are_counted_before_they_are_run(methods: list[str]) -> None:
    prompts = [
        PROMPT,
        PromptRecord("talk", ("hello", "go on", "and then")),
        PromptRecord("raw", ("a", "b"), raw=True),
    ]
    session, trials = toy_session(), []
    compare(session, prompts, methods, Options(max_new_tokens=2), 2, lambda: trials.append(1))
    assert len(trials) == count_trials(session, prompts, methods, 2) == 5 * 2 * 2


def test_end_and_stop_strings_end_the_compared_texts() -> None:
    session = toy_session()
    ids, tokens = answer(session)
    session.eos_ids = (tokens[7],)
    length = tokens.index(tokens[7]) + 1
    free = Options(max_new_tokens=24, ignore_eos=True)
    for options, count in ((Options(max_new_tokens=24), length), (free, 24)):
        report = compare(session, [PROMPT], ["pld"], options, repeats=1).methods["pld"]
        assert (report.tokens, report.identical) == (count, True)
    text = session.generate(ids, max_new_tokens=24, ignore_eos=True).text
    stop = next(letter for letter in text if letter.isascii())
    stopped = compare(session, [PROMPT], ["pld"], free.with_(stop=stop), repeats=1)
    assert stopped.methods["pld"].tokens < 24
    assert stopped.methods["pld"].identical


def test_the_report_has_the_agreed_keys_and_is_json(name_methods: NameMethods) -> None:
    session, target = planted_session()
    ids, _ = name_oracle(session, name_methods)
    target.wrong_at = len(ids) + 10
    records = report_as_json(compare(session, [PROMPT], ["oracle"], FOUR, repeats=1))
    assert [record["method"] for record in json.loads(json.dumps(records))] == ["plain", "oracle"]
    plain, oracle = records
    for record in records:
        assert set(record) >= KEYS
        assert record["tokens_per_second"] == record["tokens"] / record["seconds"]
    assert (plain["speedup"], plain["identical"], plain["mismatches"]) == (1.0, True, [])
    assert oracle["speedup"] == oracle["tokens_per_second"] / plain["tokens_per_second"]
    assert oracle["mean_acceptance_length"] == 24 / sum(oracle["acceptance_histogram"].values())
    assert not oracle["identical"]
    (mismatch,) = oracle["mismatches"]
    assert set(mismatch) == {"prompt", "position", "plain_token", "method_token", "logit_gap"}


@pytest.mark.parametrize(
    ("prompts", "methods", "words"),
    [
        ([PROMPT], ["anpdd"], "did you mean anpd"),
        ([PROMPT], ["anpd:q=1"], "no setting 'q'"),
        ([], ["anpd"], "at least one prompt"),
        ([PROMPT, PROMPT], ["anpd"], "'story' is the id of several prompts"),
        ([PromptRecord("long", ("x" * 5000,))], ["anpd"], "the model's context is 4096"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    prompts: list[PromptRecord], methods: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        compare(toy_session(), prompts, methods, GREEDY)
    assert "\n" not in str(caught.value)
