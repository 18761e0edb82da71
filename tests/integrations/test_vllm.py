"""Drafts for vLLM are those that the drafter makes in paceline's own loop."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from tests.helpers import naive_stream
from tests.integrations.vllm_runner import Request, Runner, vllm_config

import paceline.integrations.vllm as inside
from paceline import drafters
from paceline.drafters import Host, make_drafter
from paceline.errors import UsageError
from paceline.loop import FixedBudget, Generation, decode
from paceline.protocols import Drafter, Propose
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree

TOKENS = 5
SAMPLER = Sampler(temperature=0.5)  # greedy toys repeat themselves, and all drafts are right
SETTINGS: dict[str, Any] = {
    "anpd": {"n": 3},
    "llma": {"k": 7},
    "suffix": {"persist": False},
    "auto": {"sources": "anpd+suffix:persist=false+llma"},
}
CLASSES = {
    "anpd": inside.Anpd,
    "llma": inside.Llma,
    "suffix": inside.Suffix,
    "auto": inside.Auto,
}
EVERY = pytest.mark.parametrize("method", list(CLASSES))


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("vllm")
    module.__version__ = "0.32.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


@dataclass(frozen=True)
class Chains(FixedBudget):
    """Rounds as vLLM plays them: chains, none before the first token, some lost on the way."""

    generation: Generation
    lost: Collection[int]
    drafts: dict[int, tuple[int, ...]]

    def plan(self, proposals: Mapping[int, Propose], ahead: int = 0) -> dict[int, Tree]:
        length = len(self.generation.context)
        if length == len(self.generation.prompt):
            return dict.fromkeys(proposals, EMPTY)
        ((key, tree),) = super().plan(proposals).items()
        chain = inside.likeliest_chain(tree, TOKENS, inside.LEAST_SHARE)
        self.drafts[length] = chain.tokens
        return {key: EMPTY if length in self.lost else chain}


def drafts_in_the_loop(
    drafter: Drafter, prompt: Sequence[int], lost: Collection[int], tokens: int
) -> dict[int, tuple[int, ...]]:
    """What the drafter proposes in paceline's loop, by length of the text."""
    # Guesses beyond the end are cut, so it goes on for some more.
    generation = Generation(prompt, drafter, Stopping(tokens + 2 * TOKENS), SAMPLER)
    plans = Chains(inside.NODES_PER_TOKEN * TOKENS, generation, lost, {})
    for _ in decode(ToyTarget(), [generation], plans):
        pass
    return {
        length: draft for length, draft in plans.drafts.items() if length <= len(prompt) + tokens
    }


def new_request(seed: int, length: int = 9, tokens: int = 60) -> Request:
    prompt = random.Random(seed).choices(range(16), k=length)
    prompt += naive_stream(ToyTarget(), prompt, 12, SAMPLER)
    return Request(prompt, naive_stream(ToyTarget(), prompt, tokens, SAMPLER))


def new_proposer(method: str, **changes: Any) -> inside.Proposer:
    return CLASSES[method](vllm_config(TOKENS, {**SETTINGS[method], **changes}))


def drafter_alone(method: str) -> Drafter:
    return make_drafter(method, **SETTINGS[method])


def check_as_in_the_loop(request: Request, drafter: Drafter, begin: int = 0) -> None:
    """begin: length of the text from which the drafter goes on."""
    begin = begin or len(request.prompt)
    mine = {length: draft for length, draft in request.drafts.items() if length > begin}
    prompt, tokens = request.text[:begin], len(request.text) - begin
    assert len(mine) > 3
    assert mine == drafts_in_the_loop(drafter, prompt, request.lost, tokens)


def play(runner: Runner, request: Request, steps: int) -> None:
    """One request alone."""
    if request not in runner.batch:
        runner.join(request)
    for _ in range(steps):
        runner.step()


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_come_and_go(method: str, seed: int) -> None:
    rng = random.Random(seed)
    runner = Runner(new_proposer(method))
    waiting = [new_request(10 * seed + number) for number in range(7)]
    requests, away, accepted, rejected = list(waiting), dict[Request, int](), 0, 0
    while waiting or away or runner.batch:
        for request in [one for one, steps in away.items() if steps == 0]:
            del away[request]
            runner.join(request, reading=rng.random() < 0.5)
        away = {one: steps - 1 for one, steps in away.items()}
        if waiting and len(runner.batch) < 4:
            runner.join(waiting.pop(), reading=rng.random() < 0.3)
        before = [(one, one.said, len(one.draft)) for one in runner.batch]
        runner.step()
        for request, said, drafted in before:
            gained = request.said - said
            accepted += max(0, gained - 1)
            rejected += max(0, drafted + 1 - gained) if gained else 0
            if request.said >= 50:
                runner.leave(request)
            elif gained and rng.random() < 0.1:
                runner.leave(request)
                away[request] = rng.randrange(inside.PATIENCE - 2)
    assert accepted > 5 and rejected > 5
    # How far sources of `auto` are asked depends on what they have brought to all texts.
    for request in [] if method == "auto" else requests:
        check_as_in_the_loop(request, drafter_alone(method))


@EVERY
def test_equal_texts_have_equal_drafts(method: str) -> None:
    runner = Runner(new_proposer(method))
    requests = [new_request(3) for _ in range(3)]
    for request in requests:
        runner.join(request)
    for _ in range(12):
        runner.step()
    assert requests[0].drafts == requests[1].drafts == requests[2].drafts
    check_as_in_the_loop(requests[0], drafter_alone(method))


@EVERY
def test_a_text_that_was_away_for_long_is_a_new_one(method: str) -> None:
    runner, request, other = Runner(new_proposer(method)), new_request(1), new_request(2, tokens=90)
    runner.join(other)
    play(runner, request, 6)
    runner.leave(request)
    play(runner, other, inside.PATIENCE)
    begin = len(request.text)
    play(runner, request, 10)
    check_as_in_the_loop(request, drafter_alone(method), begin)
    check_as_in_the_loop(other, drafter_alone(method))


def test_what_has_ended_is_not_kept() -> None:
    proposer = new_proposer("anpd")
    runner, other = Runner(proposer), new_request(0, tokens=400)
    for seed in range(1, 12):
        request = new_request(seed)
        play(runner, request, 3)
        runner.leave(request)
        play(runner, other, 1)
        assert sum(map(len, proposer._texts.values())) <= 1 + inside.PATIENCE
    play(runner, other, inside.PATIENCE)
    assert sum(map(len, proposer._texts.values())) == 1


def test_answers_serve_other_requests() -> None:
    proposer = inside.Suffix(vllm_config(TOKENS))
    runner, first, second = Runner(proposer), new_request(1), new_request(1)
    play(runner, first, 20)
    runner.leave(first)
    reading = new_request(5)
    for _ in range(inside.PATIENCE):
        runner.join(reading, reading=True)
        runner.step()
        runner.leave(reading)
    play(runner, second, 10)
    host = Host(ToyTarget())
    generation = Generation(
        first.prompt, make_drafter("suffix", host), Stopping(first.said), SAMPLER
    )
    for _ in decode(ToyTarget(), [generation], inside.NODES_PER_TOKEN * TOKENS):
        pass
    check_as_in_the_loop(first, make_drafter("suffix"))
    check_as_in_the_loop(second, make_drafter("suffix", host))
    assert second.said > 2 * 10 and len(first.drafts) == 20  # rounds


def test_drafts_end_with_the_context() -> None:
    reached = []
    for seed in range(8):
        request = new_request(seed)
        end = len(request.prompt) + 20
        runner = Runner(inside.Anpd(vllm_config(TOKENS, {"least_share": 0}, longest=end)))
        runner.join(request)
        while len(request.text) < end:
            runner.step()
        reached += [length + len(draft) - end for length, draft in request.drafts.items() if draft]
    assert max(reached) == 0


def test_unlikely_guesses_are_left_out() -> None:
    lengths = []
    for share in (0.0, 0.4, 1.0):
        request = new_request(4)
        play(Runner(new_proposer("anpd", least_share=share)), request, 25)
        lengths.append(sum(map(len, request.drafts.values())))
    assert lengths[0] > lengths[1] > lengths[2] == 0


def test_a_chain_is_the_likeliest_one() -> None:
    tree = Tree((1, 2, 3, 4, 5), (-1, -1, 1, 1, 3), (0.3, 0.6, 0.2, 0.3, 0.1))
    assert inside.likeliest_chain(tree, 9).tokens == (2, 4, 5)
    assert inside.likeliest_chain(tree, 2).tokens == (2, 4)
    assert inside.likeliest_chain(tree, 9, 0.3).tokens == (2, 4)
    assert not inside.likeliest_chain(tree, 0) and not inside.likeliest_chain(EMPTY, 3)
    assert inside.likeliest_chain(Tree.chain((7, 8)), 9, 0.9).tokens == (7, 8)


def test_a_drafter_that_fails_fails_for_its_text_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, request, other = Runner(new_proposer("anpd")), new_request(1), new_request(2)
    propose = drafters.Anpd.propose_after

    def fails(self: drafters.Anpd, path: Sequence[int], budget: int) -> Tree:
        if self._text[: len(request.prompt)] == request.prompt and len(self._text) > 30:
            raise RuntimeError("no more")
        return propose(self, path, budget)

    monkeypatch.setattr(drafters.Anpd, "propose_after", fails)
    runner.join(request)
    play(runner, other, 25)
    assert [record.message for record in caplog.records] == [
        "Anpd failed: its text continues without drafts"
    ]
    assert not any(draft for length, draft in request.drafts.items() if length > 30)
    monkeypatch.undo()
    check_as_in_the_loop(other, drafter_alone("anpd"))


@pytest.mark.parametrize("version", ["0.32.1", "0.33.0+cpu", "0.33.0rc1"])
def test_known_versions(vllm: ModuleType, version: str) -> None:
    vllm.__version__ = version  # type: ignore[attr-defined]
    inside.Auto(vllm_config()).load_model(object())


@pytest.mark.parametrize("version", ["0.3.2", "0.34.0", "1.0", "dev"])
def test_unknown_versions_are_refused(vllm: ModuleType, version: str) -> None:
    vllm.__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(
        UsageError, match=rf"^vLLM {re.escape(version)} may call .* 0\.32 or 0\.33$"
    ):
        inside.Anpd(vllm_config())


@pytest.mark.parametrize(
    ("additional", "said"),
    [
        ({"n": 99}, "n must be at most 64"),
        ({"nn": 4}, "has no setting 'nn'"),
        ({"least_share": 1.5}, "least_share must be a number from 0 to 1"),
        ({"least_share": "much"}, "least_share must be a number from 0 to 1"),
        ("n=4", "give settings by name"),
    ],
)
def test_settings_are_checked(additional: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        inside.Anpd(vllm_config(additional=additional))


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("lookahead", "Lookahead needs shadow_tokens, trees"),
        ("jacobi", "trees of jacobi must stay whole"),
        ("nonsense", "unknown method"),
    ],
)
def test_methods_that_need_more_are_refused(method: str, said: str) -> None:
    class Other(inside.Proposer):
        pass

    Other.method = method
    with pytest.raises(UsageError, match=said):
        Other(vllm_config())


def test_other_methods_take_a_class_of_their_own() -> None:
    class Pld(inside.Proposer):
        method = "pld:n=2"

    request = new_request(1)
    play(Runner(Pld(vllm_config(TOKENS))), request, 15)
    check_as_in_the_loop(request, make_drafter("pld:n=2"))
