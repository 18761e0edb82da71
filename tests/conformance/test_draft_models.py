"""Draft models against plain decoding: what coupling promises, and where a draft model gives up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.draft_hosts import TOYS, toy_host
from tests.helpers import cut, generate, naive_stream, play
from tests.prompt_parts import saved_parts
from tests.tiny_models import VOCAB, new_model, some_prompt, tiny_model

from paceline.drafters import Host, Speculative
from paceline.loop import Generation
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.prepare import prepare
from paceline.targets.toy import ToyTarget

PROMPT = [3, 1, 4, 1, 5]
F64 = torch.float64
END = 2
SAMPLERS = [
    GREEDY,
    Sampler(seed=3, temperature=0.5),
    Sampler(seed=4, temperature=1.0),
    Sampler(seed=5, temperature=1.7, top_k=9, top_p=0.9, min_p=0.01),
    Sampler(seed=6, temperature=0.8, repetition_penalty=1.3),
    Sampler(temperature=0.0, repetition_penalty=1.3),
]


def toy_drafter(draft: str, inner: object = "plain", **settings: object) -> Speculative:
    return Speculative(toy_host(), draft=draft, inner=inner, **settings)  # type: ignore[arg-type]


@cache
def plain(sampler: Sampler, prompt: tuple[int, ...] = tuple(PROMPT), count: int = 50) -> list[int]:
    return naive_stream(ToyTarget(), prompt, count, sampler)


def stats_of(rounds: Sequence[Round]) -> Stats:
    stats = Stats()
    for round in rounds:
        stats.add(round)
    return stats


# ---- coupled noise ----


@pytest.mark.parametrize("inner", ["plain", "anpd", "speculative:draft=stranger"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_that_a_perfect_draft_model_says_is_accepted_at_any_temperature(
    sampler: Sampler, inner: str
) -> None:
    for draft in ("twin", "padded"):
        drafter = toy_drafter(draft, inner, length=4, branches=0)
        output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 25, sampler=sampler)
        assert output == plain(sampler)[:25]
        assert [len(round.tree) for round in rounds] == [4] * 5
        assert all(len(round.path.nodes) == 4 for round in rounds)


def test_a_perfect_draft_model_may_be_a_model_of_transformers() -> None:
    model = tiny_model("llama", "sdpa", F64)
    for sampler in SAMPLERS:
        target, small = (CausalLMTarget(model, check=False) for _ in range(2))
        expected = naive_stream(target, some_prompt(17), 10, sampler)
        drafter = Speculative(Host(target), draft=Host(small), length=4, branches=0)
        output, rounds, _ = generate(target, drafter, some_prompt(17), 10, sampler=sampler)
        assert output == expected
        assert all(len(round.path.nodes) == len(round.tree) == 4 for round in rounds)


class Uncoupled(Speculative):
    """Draws with noise of its own."""

    def start(self, text: TextStart) -> None:
        other = replace(text.sampler or GREEDY, seed=99)
        super().start(replace(text, sampler=other))


def test_the_targets_noise_makes_guesses_right_more_often() -> None:
    rates = {}
    for kind in (Speculative, Uncoupled):
        stats = Stats()
        for seed in range(8):
            drafter = kind(toy_host(), draft="near", length=4, branches=0)
            sampler = Sampler(seed=seed, temperature=1.0)
            output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 50, sampler=sampler)
            assert output == plain(sampler)
            stats.merge(stats_of(rounds))
        rates[kind] = stats.mean_acceptance_length
    assert rates[Speculative] > 1.3 * rates[Uncoupled]


class Favourite:
    """A processor that makes one token likelier, another one wherever the text has another length.

    calls: length of the text at each call.
    """

    def __init__(self, stateless: bool) -> None:
        self.stateless = stateless
        self.calls: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        self.calls.append(length)
        scores[:, length % 16] += 3
        return scores


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processors_that_promise_to_keep_no_state_are_asked_for_drafts_too(
    temperature: float,
) -> None:
    free = Favourite(stateless=True)
    sampler = Sampler(seed=1, temperature=temperature, processors=(free,))
    drafter = toy_drafter("twin", length=4, branches=0)
    output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 25, sampler=sampler)
    assert output == naive_stream(ToyTarget(), PROMPT, 25, sampler)
    assert all(len(round.path.nodes) == 4 for round in rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_processors_are_called_once_per_position(temperature: float) -> None:
    bound = Favourite(stateless=False)
    sampler = Sampler(seed=1, temperature=temperature, processors=(bound,))
    output, _, _ = generate(ToyTarget(), toy_drafter("twin"), PROMPT, 25, sampler=sampler)
    assert bound.calls == list(range(len(PROMPT), len(PROMPT) + 25))
    assert output == naive_stream(ToyTarget(), PROMPT, 25, sampler)


class EndsFirst:
    """A rule of a finished text: nothing may follow its end, or it raises."""

    stateless = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if END in input_ids[0, len(PROMPT) :].tolist():
            raise LookupError("the text has ended")
        return scores


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("inner", ["plain", "anpd"])
def test_processors_that_refuse_drafts_beyond_the_end_do_not_end_the_text(
    inner: str, temperature: float
) -> None:
    sampler = Sampler(temperature=temperature, processors=(EndsFirst(),))
    expected = naive_stream(ToyTarget(), PROMPT, 60, replace(sampler, processors=()))
    expected = expected[: expected.index(END) + 1]
    drafter = toy_drafter("twin", inner=inner, length=6)
    found = generate(ToyTarget(), drafter, PROMPT, 60, sampler=sampler, eos_ids={END})
    assert found[0] == expected


# ---- where a draft model gives up ----


def test_a_draft_model_whose_context_is_full_says_nothing_more() -> None:
    """ "short" takes 20 tokens."""
    for sampler in SAMPLERS:
        drafter = toy_drafter("short", branches=0)
        output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 40, sampler=sampler)
        assert output == plain(sampler)[:40]
        length = len(PROMPT)
        for round in rounds:
            assert length + len(round.tree) <= 20 or not len(round.tree)
            length += len(round.path.tokens)
        assert len(rounds[0].tree) and not len(rounds[-1].tree)


@pytest.mark.parametrize("length", [19, 20, 21, 60])
def test_a_prompt_beyond_the_draft_models_context_is_no_error(length: int) -> None:
    prompt = [(7 * place) % 16 for place in range(length)]
    output, rounds, _ = generate(ToyTarget(), toy_drafter("short"), prompt, 12)
    assert output == naive_stream(ToyTarget(), prompt, 12)
    assert any(len(round.tree) for round in rounds) == (length < 20)


def test_positions_beyond_a_draft_models_embeddings_are_never_read() -> None:
    """Learned positions end there: one beyond would be an index out of range."""
    model = tiny_model("gpt2", "sdpa", F64)
    small = CausalLMTarget(new_model("gpt2", "sdpa", F64, n_positions=32), check=False)
    expected = naive_stream(CausalLMTarget(model, check=False), some_prompt(25), 20)
    for inner in ("plain", "anpd", "pld"):
        target = CausalLMTarget(model, check=False)
        drafter = Speculative(Host(target), draft=Host(small), inner=inner)
        assert generate(target, drafter, some_prompt(25), 20)[0] == expected


def test_a_token_that_the_draft_model_does_not_have_silences_it_for_the_text() -> None:
    drafter = toy_drafter("narrow")  # tokens below 11
    for prompt in ([1, 2, 3], [12, 3, 4]):
        output, rounds, _ = generate(ToyTarget(), drafter, prompt, 40)
        assert output == naive_stream(ToyTarget(), prompt, 40)
        assert len(rounds[0].tree) == 0 if prompt[0] == 12 else len(rounds[0].tree) > 0
        text = list(prompt)
        for round in rounds:
            assert max(text) < 11 or not len(round.tree)
            assert all(token < 11 for token in round.tree.tokens)
            text += round.path.tokens


def test_tokens_that_the_draft_model_does_not_have_never_reach_it() -> None:
    """Neither out of the text nor out of a reference that its own drafter copies from: an id beyond
    the embedding is an index out of range."""
    target = CausalLMTarget(tiny_model("llama", "sdpa", F64), check=False)
    small = CausalLMTarget(new_model("llama", "sdpa", F64, vocab_size=40), check=False)
    rng = random.Random(0)
    for seed in range(4):
        prompt = [rng.randrange(40) for _ in range(9)]
        sampler = Sampler(seed=seed, temperature=0.8 * (seed % 2))
        expected = naive_stream(target, prompt, 14, sampler)
        references = [[*expected, 50, 60], [token % 40 for token in expected]]
        for inner in ("anpd", "llma"):
            drafter = Speculative(Host(target), draft=Host(small), inner=inner)
            output, _, _ = generate(
                target, drafter, prompt, 14, sampler=sampler, references=references
            )
            assert output == expected


def test_tokens_that_the_draft_model_cannot_say_are_never_guessed() -> None:
    for sampler in SAMPLERS:
        drafter = toy_drafter("mumbling", length=5, branches=3)
        output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 40, sampler=sampler)
        assert output == plain(sampler)[:40]
        assert all(token % 3 for round in rounds for token in round.tree.tokens)
        assert stats_of(rounds).accepted


@pytest.mark.parametrize("weights", ["native", "packed"])
def test_a_model_of_transformers_need_not_be_able_to_say_all_tokens(weights: str) -> None:
    """It may know the frequent ones only: all others are -inf, which is a score like any other to
    the checks at load."""
    model = new_model("llama", "sdpa", torch.float32)

    def frequent_only(module: Any, args: Any, output: Any) -> None:
        output.logits[..., ::3] = -torch.inf

    model.register_forward_hook(frequent_only)
    preparation = prepare(model, weights)
    small = CausalLMTarget(model, preparation=preparation)
    target = CausalLMTarget(tiny_model("llama", "sdpa", torch.float32), check=False)
    for sampler in SAMPLERS:
        expected = naive_stream(target, some_prompt(17), 10, sampler)
        drafter = Speculative(Host(target), draft=Host(small), length=4, branches=2)
        output, rounds, _ = generate(target, drafter, some_prompt(17), 10, sampler=sampler)
        assert output == expected
        assert all(token % 3 for round in rounds for token in round.tree.tokens)
        assert stats_of(rounds).drafted


def test_padding_of_the_draft_model_is_never_guessed() -> None:
    for sampler in SAMPLERS:
        drafter = toy_drafter("padded", length=6, branches=4)
        output, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 40, sampler=sampler)
        assert output == plain(sampler)[:40]
        assert all(token < 16 for round in rounds for token in round.tree.tokens)


# ---- nested, batched, cut ----

NESTED = [
    "plain",
    "anpd",
    "llma",
    "speculative:draft=near",
    "speculative:draft=stranger,inner=(speculative:draft=twin,inner=pld)",
]


@pytest.mark.parametrize(
    ("draft", "sampler"), [("near", GREEDY), ("stranger", SAMPLERS[1]), ("near", SAMPLERS[2])]
)
@pytest.mark.parametrize("inner", NESTED)
def test_the_text_is_that_of_plain_decoding_however_deep_drafters_are_nested(
    draft: str, inner: str, sampler: Sampler
) -> None:
    for budget, settings in (
        (0, {}),
        (1, {"length": 3, "branches": 2}),
        (3, {"confidence": 0.5}),
        (64, {"length": 3, "branches": 2}),
        (TreePlanner(), {}),
    ):
        output, _, _ = generate(
            ToyTarget(),
            toy_drafter(draft, inner, **settings),
            PROMPT,
            30,
            sampler=sampler,
            budget=budget,
            references=[plain(sampler)[5:20]],
        )
        assert output == plain(sampler)[:30]


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(seed=5, temperature=0.8)])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_prompt_tokens_draft_for_a_draft_model(name: str, sampler: Sampler) -> None:
    target = CausalLMTarget(tiny_model(name, "sdpa", F64), check=False)
    small = CausalLMTarget(tiny_model("llama", "sdpa", F64), check=False)
    expected = naive_stream(target, some_prompt(17), 11, sampler)
    for prompt_tokens, epts in ((1, 1), (3, 2)):
        parts = saved_parts(prompt_tokens, epts, vocab=VOCAB)
        inner = f"ppd:parts={parts},size=12"
        drafter = Speculative(Host(target), draft=Host(small, "toy"), inner=inner, length=4)
        output, rounds, _ = generate(target, drafter, some_prompt(17), 11, sampler=sampler)
        assert output == expected
        assert all(token < VOCAB for round in rounds for token in round.tree.tokens)


@pytest.mark.parametrize("seed", range(12))
def test_texts_of_a_batch_have_draft_models_of_their_own(seed: int) -> None:
    rng = random.Random(seed)
    target = ToyTarget(seed=seed % 2)
    generations, expected = [], []
    for _ in range(2 + seed % 3):
        prompt = [rng.randrange(16) for _ in range(rng.randint(1, 25))]
        sampler = Sampler(rng.randrange(99), rng.choice([0.0, 0.8]))
        limit, eos_ids = rng.randint(1, 25), rng.sample(range(16), rng.choice([0, 1, 3]))
        inner = rng.choice(NESTED)
        drafter: Drafter = Speculative(toy_host(target), draft=rng.choice(list(TOYS)), inner=inner)
        expected.append(cut(naive_stream(target, prompt, limit, sampler), eos_ids))
        generations.append(Generation(prompt, drafter, Stopping(limit, eos_ids), sampler))
    play(target, generations, rng.choice([1, 7, 64, TreePlanner()]))
    assert [each.output for each in generations] == expected


@pytest.mark.parametrize("draft", ["near", "stranger"])
def test_turns_of_a_conversation_go_on_with_the_same_drafter(draft: str) -> None:
    drafter, text = toy_drafter(draft, "anpd"), list(PROMPT)
    for sampler in (GREEDY, Sampler(seed=2, temperature=1.0)) * 2:
        output, _, _ = generate(ToyTarget(), drafter, text, 12, sampler=sampler)
        assert output == naive_stream(ToyTarget(), text, 12, sampler)
        text = [*text, *output, 7, 2]


def test_half_precision_drafts_for_full_precision() -> None:
    """Its rounding costs guesses and nothing else."""
    target = CausalLMTarget(tiny_model("llama", "sdpa", torch.float32), check=False)
    small = CausalLMTarget(tiny_model("llama", "sdpa", torch.bfloat16), check=False)
    for sampler in (GREEDY, Sampler(seed=2, temperature=0.8)):
        expected = naive_stream(target, some_prompt(17), 20, sampler)
        drafter = Speculative(Host(target), draft=Host(small), length=4)
        output, rounds, _ = generate(target, drafter, some_prompt(17), 20, sampler=sampler)
        assert output == expected
        assert stats_of(rounds).accepted
