"""EAGLE and Chimera from text to text: what they keep, and what they let go of."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from weakref import ref

import pytest
import torch
from tests.c_library import needs_library, without_library
from tests.draft_hosts import Ticking
from tests.drafters.test_heads_drafting import Noted, own_states
from tests.head_parts import saved_heads
from tests.helpers import naive_stream, play
from tests.tiny_models import VOCAB, new_model, some_prompt, tiny_model

from paceline.drafters import Chimera, Eagle, Host
from paceline.drafters.called_levels import CalledLevels
from paceline.drafters.level_drafter import LevelDrafter
from paceline.errors import UsageError
from paceline.kernels import block_layers, choice
from paceline.loop import Generation
from paceline.planning.draft_length import DraftLength
from paceline.records import TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import Tree

TINY = "tiny"
SIZES = {"hidden": 32, "vocab": VOCAB, "fingerprint": TINY}
FIXED = {"depth": 3, "least": 0.0}

Made = Callable[[CausalLMTarget], LevelDrafter]


def made(
    method: str, target: CausalLMTarget, config: dict[str, Any], **settings: Any
) -> LevelDrafter:
    """A drafter with random parts of this configuration."""
    parts = str(saved_heads(method, **SIZES, **config))
    kind = {"eagle": Eagle, "chimera": Chimera}[method]
    return kind(Host(target, TINY, clock=Ticking(1e-3)), parts=parts, **settings)


def eagle(target: CausalLMTarget, **settings: Any) -> LevelDrafter:
    return made("eagle", target, {}, **FIXED, **settings)


def chimera(target: CausalLMTarget, **settings: Any) -> LevelDrafter:
    return made("chimera", target, {}, **FIXED, **settings)


WAYS: dict[str, Made] = {
    "eagle": eagle,
    "eagle, by modules": partial(eagle, weights="native"),
    "chimera": chimera,
    "chimera, by modules": partial(chimera, weights="native"),
}


@pytest.fixture
def target() -> CausalLMTarget:
    return CausalLMTarget(tiny_model("llama"), check=False)


@torch.no_grad()
def drafts(
    drafter: LevelDrafter, target: CausalLMTarget, text: list[int], budget: int = 12
) -> Tree:
    """What is proposed where the target has read all but the last token."""
    drafter.observe_states(own_states(target.model, text[:-1]))
    return drafter.propose(budget)


def assert_alike(found: Tree, expected: Tree) -> None:
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
    assert found.weights == pytest.approx(expected.weights, rel=1e-4)


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_the_next_text_of_a_chat_reads_only_what_is_new(make: Made, target: CausalLMTarget) -> None:
    """And drafts as if it had read everything, with noise of its own."""
    drafter, sampled = make(target), Sampler(seed=3, temperature=0.9)
    before = some_prompt(40)
    drafter.start(TextStart(before))
    drafts(drafter, target, before)
    drafter.stop()
    turns = [
        ([*before, *some_prompt(9, seed=1)], GREEDY, 11),  # the next turn
        ([*before, *some_prompt(9, seed=1)], sampled, 2),  # the same again
        ([*before[:30], *some_prompt(9, seed=2)], GREEDY, 11),  # an earlier turn is changed
        (before[:24], sampled, 2),  # and taken back
    ]
    for text, sampler, most in turns:
        drafter.start(TextStart(text, sampler=sampler))
        assert drafter.unread() <= most
        fresh = make(target)
        fresh.start(TextStart(text, sampler=sampler))
        assert fresh.unread() == len(text) - 1
        found, expected = drafts(drafter, target, text), drafts(fresh, target, text)
        assert drafter.unread() == 0
        assert_alike(found, expected)
        drafter.stop()


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_text_taken_back_is_drafted_for_as_if_it_had_always_been_this_one(
    make: Made, target: CausalLMTarget
) -> None:
    drafter, text = make(target), some_prompt(40)
    drafter.start(TextStart(text))
    drafts(drafter, target, text)
    for again in ([*text[:36], *some_prompt(4, seed=1)], text[:30]):
        drafter.resume(TextStart(again))
        fresh = make(target)
        fresh.start(TextStart(again))
        found, expected = drafts(drafter, target, again), drafts(fresh, target, again)
        assert_alike(found, expected)


@pytest.mark.parametrize("make", [eagle, chimera])
def test_of_a_text_not_to_be_recorded_nothing_is_kept(make: Made, target: CausalLMTarget) -> None:
    drafter, text = make(target), some_prompt(40)
    for record, anew in ((False, True), (True, True), (True, False)):
        drafter.start(TextStart(text, record=record))
        assert (drafter.unread() == len(text) - 1) == anew
        drafts(drafter, target, text)
        encoded = len(drafter._greens._memory) if isinstance(drafter, Chimera) else 0
        assert bool(encoded) == (record and make is chimera)
        drafter.stop()


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
@torch.no_grad()
def test_of_a_long_prompt_only_the_end_is_read(make: Made, target: CausalLMTarget) -> None:
    """And what follows it, with memory that grows; after a long rest, again only the end."""
    drafter, text = make(target), some_prompt(400)
    drafter._beam = replace(drafter._beam, context=40)
    states = own_states(target.model, text)
    drafter.start(TextStart(text[:101]))
    for length, first, unread in [
        (101, 60, 40),
        (102, 60, 1),
        (131, 60, 29),
        (171, 60, 40),
        (300, 259, 40),
        (339, 259, 39),
    ]:
        drafter._text = text[:length]  # as `observe` does while it rests
        assert drafter.unread() == unread
        drafter.observe_states(states[: length - 1])
        found = drafter.propose(12)
        fresh = make(target)
        fresh.start(TextStart(text[first:length]))
        fresh.observe_states(states[first : length - 1])
        expected = fresh.propose(12)
        assert_alike(found, expected)


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_stopped_drafter_does_not_hold_the_targets_states(
    make: Made, target: CausalLMTarget
) -> None:
    drafter, text = make(target), some_prompt(40)
    drafter.start(TextStart(text))
    pool = own_states(target.model, text[:-1]).detach().numpy().copy()
    drafter.observe_states(torch.from_numpy(pool))
    assert len(drafter.propose(12))
    held = ref(pool)
    del pool
    drafter.stop()
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("make", [eagle, chimera])
def test_a_text_that_shares_little_releases_the_memory_of_the_last_one(
    make: Made, target: CausalLMTarget
) -> None:
    drafter, long = make(target), some_prompt(200)
    drafter.start(TextStart(long))
    drafts(drafter, target, long)
    held = ref(drafter._levels)
    drafter.start(TextStart([*long[:20], 1, 2, 3]))
    gc.collect()
    assert held() is None and drafter.unread() == 22


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make", [eagle, chimera])
def test_turns_of_one_drafter_are_those_of_plain_decoding(make: Made, temperature: float) -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target = CausalLMTarget(model, check=False)
    drafter, text = make(target), some_prompt(11)
    for turn in range(3):
        sampler = Sampler(seed=turn, temperature=temperature)
        generation = Generation(text, drafter, Stopping(10), sampler)
        play(target, [generation], budget=9)
        alone = CausalLMTarget(model, check=False)
        assert generation.output == naive_stream(alone, text, 10, sampler)
        text = [*generation.context, *some_prompt(4, seed=turn)]


class Unteachable(DraftLength):
    """Learns nothing from the clock."""

    def drafted(self, milliseconds: float, tokens: int, first: bool = False) -> None: ...

    def played(
        self, target_milliseconds: float, milliseconds: float, tokens: int, context: int
    ) -> None: ...


def told_what_pays(share: float = 0.2) -> DraftLength:
    """A level takes that share of a pass of the target."""
    found = Unteachable(longest=4)
    for _ in range(30):
        DraftLength.drafted(found, share, 1)
        DraftLength.played(found, 1.0, 1.0 + share, 1, 0)
    return found


@pytest.mark.parametrize(("share", "deep"), [(1e-6, True), (100.0, False)])
def test_levels_are_grown_as_long_as_they_are_worth_their_time(
    share: float, deep: bool, target: CausalLMTarget
) -> None:
    drafter = made("chimera", target, {"heads": 4}, least=0.0)
    drafter._plan = told_what_pays(share)
    noted = Noted(drafter)
    play(target, [Generation(some_prompt(9), noted, Stopping(12))], budget=3000)
    assert (max(max(tree.depths, default=0) for _, tree in noted.seen) > 1) == deep


CALLED = {
    "chimera": (
        (
            {},
            {"vocabulary": 20, "order": 2, "heads": 3, "final_norm": True, "rotary_base": 500.0},
            {"residual": False, "biases": True},
            {"rank": 8},
        ),
        [
            ({"depth": 4, "least": 0.0}, 0.0),
            ({"depth": 4, "least": 0.02, "beam": 2}, 0.9),
            ({"depth": 4, "least": 0.0, "ranks": 40, "beam": 9}, 0.0),
            ({"depth": 2, "least": 0.0, "ranks": 1}, 0.9),
            ({"depth": 4, "least": 1.0}, 0.0),
            ({}, 0.9),
        ],
    ),
    "eagle": (
        ({}, {"vocabulary": 20, "kv_heads": 4, "biases": True}),
        [
            ({}, 0.0),
            ({"least": 0.0, "depth": 3}, 0.9),
            ({"least": 0.0, "depth": 32, "ranks": 40, "beam": 9}, 0.0),
            ({"least": 0.1, "beam": 2}, 0.9),
            ({"ranks": 1}, 0.0),
            ({"least": 1.0}, 0.9),
        ],
    ),
}


@needs_library
@pytest.mark.parametrize(
    ("method", "model", "config", "settings", "temperature"),
    [
        (method, "llama", config, *how)
        for method, (configs, ways) in CALLED.items()
        for config, how in [*product(configs[:1], ways), *product(configs[1:], ways[1:3])]
    ]
    + [(method, "gemma3", {}, {"depth": 3, "ranks": 3}, 0.0) for method in CALLED],
    ids=str,
)
def test_a_draft_in_one_call_is_the_draft_level_by_level(
    method: str,
    model: str,
    config: dict[str, Any],
    settings: dict[str, Any],
    temperature: float,
) -> None:
    """Prompts that are shorter and longer than what one call takes over, of several texts in turn."""
    seen, sampler = [], Sampler(seed=3, temperature=temperature)
    for weights in ("fastest", "native"):
        target = CausalLMTarget(tiny_model(model), check=False)
        drafter = made(method, target, config, weights=weights, **settings)
        if method == "chimera" and not settings:
            drafter._plan = told_what_pays()
        assert isinstance(drafter._levels, CalledLevels) == (weights == "fastest")
        noted = Noted(drafter)
        for length, budget in ((3, 3), (7, 30), (30, 1), (40, 200)):
            text = Generation(some_prompt(length), noted, Stopping(4), sampler)
            play(target, [text], budget=budget)
        seen.append(noted.seen)
    assert len(seen[0]) > 11
    for (_, one), (_, other) in zip(*seen, strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        assert (one.weights or ()) == pytest.approx(other.weights or (), rel=1e-3)


@needs_library
@pytest.mark.parametrize("method", ["eagle", "chimera"])
def test_a_draft_after_fewer_tokens_than_an_ngram_has(method: str) -> None:
    target, found = CausalLMTarget(tiny_model("llama"), check=False), []
    for weights in ("fastest", "native"):
        drafter = made(method, target, {}, weights=weights, depth=1, least=0.0)
        drafter.start(TextStart(some_prompt(2)))
        found.append(drafts(drafter, target, some_prompt(2)))
    one, other = found
    assert (one.tokens, one.parents) == (other.tokens, other.parents)
    assert one.weights == pytest.approx(other.weights, rel=1e-4)


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    """Tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bfloat16": torch.Tensor.bfloat16,
    "float16": torch.Tensor.half,
    "float64": torch.Tensor.double,
    "strided": lambda states: states.T.contiguous().T,
}


@needs_library
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("context", [0, 40])
@pytest.mark.parametrize("make", [eagle, chimera])
@torch.no_grad()
def test_states_may_be_of_any_kind(
    make: Made, context: int, kind: Callable[[torch.Tensor], torch.Tensor], target: CausalLMTarget
) -> None:
    text = some_prompt(270)
    states = kind(own_states(target.model, text))
    one, other = make(target), make(target)
    for drafter in (one, other):
        drafter._beam = replace(drafter._beam, context=context)
        drafter.start(TextStart(text[:3]))
    for length in (3, 4, 7, 15, 60, 61, 130, 262):
        for drafter, given in ((one, states), (other, states.float().contiguous())):
            drafter._text = text[:length]
            drafter.observe_states(given[: length - 1])
        assert one.propose(30) == other.propose(30)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["eagle", "chimera"])
def test_a_model_in_16_bits_is_drafted_for_in_one_call(method: str, dtype: torch.dtype) -> None:
    target, text = CausalLMTarget(new_model("llama", dtype=dtype), check=False), some_prompt(40)
    found = []
    for weights in ("fastest", "native"):
        drafter = made(method, target, {}, weights=weights, **FIXED)
        assert isinstance(drafter._levels, CalledLevels) == (weights == "fastest")
        drafter.start(TextStart(text))
        tree = drafts(drafter, target, text)
        found.append(dict(zip(paths_of(tree), tree.weights, strict=True)))
    one, other = found  # modules multiply by the output head in 16 bits
    assert one.keys() == other.keys()
    assert [*one.values()] == pytest.approx([other[path] for path in one], abs=0.02)


@needs_library
@pytest.mark.parametrize("method", ["eagle", "chimera"])
def test_quick_programs_guess_about_alike(
    method: str, target: CausalLMTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found = some_prompt(40), []
    for weights, worth in (("fastest", choice.WORTH_CHOOSING), ("int8", 0), ("fastest", 0)):
        monkeypatch.setattr(choice, "WORTH_CHOOSING", worth)
        drafter = made(method, target, {}, weights=weights, depth=1, ranks=VOCAB, least=0.0)
        assert isinstance(drafter._levels, CalledLevels)
        drafter.start(TextStart(text))
        tree = drafts(drafter, target, text, budget=VOCAB)
        chances = torch.zeros(VOCAB)
        chances[list(tree.tokens)] = torch.tensor(tree.weights)
        found.append(chances)
    exact, in_8_bits, in_4_bits = found
    assert 0 < (in_8_bits - exact).norm() < 0.2 * exact.norm()
    assert 0 < (in_4_bits - exact).norm() < 0.6 * exact.norm()


@pytest.mark.parametrize("method", ["eagle", "chimera"])
def test_without_the_library_there_are_no_8_bits(method: str, target: CausalLMTarget) -> None:
    with (
        without_library(choice),
        without_library(block_layers),
        pytest.raises(UsageError, match="int8 weights here: was not built"),
    ):
        made(method, target, {}, weights="int8")
