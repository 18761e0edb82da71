"""Parallel prompt decoding on tiny models of several architectures, whatever its embeddings say."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.helpers import Counting, cut, generate, naive_stream, play
from tests.prompt_parts import TOY, host_on, random_parts, saved_parts
from tests.tiny_models import VOCAB, new_model, some_prompt, tiny_model

from paceline.drafters import Ppd
from paceline.loop import Generation, decode
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree

F64 = torch.float64
NAMED = ["llama", "qwen2", "gemma", "gemma3", "gpt2"]
WARM = Sampler(seed=5, temperature=0.8)


@cache
def target_of(name: str) -> CausalLMTarget:
    return CausalLMTarget(tiny_model(name, "sdpa", F64), check=False)


@cache
def plain(name: str, sampler: Sampler, count: int = 16) -> list[int]:
    return naive_stream(target_of(name), some_prompt(17), count, sampler)


def drafter_on(
    target: Any, prompt_tokens: int = 3, epts: int = 1, size: int = 0, **more: Any
) -> Ppd:
    vocab = target.vocab_size
    return Ppd(
        host_on(target), parts=str(saved_parts(prompt_tokens, epts, vocab=vocab, **more)), size=size
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "epts", "sampler"), [(1, 1, WARM), (2, 5, GREEDY), (4, 2, WARM)]
)
@pytest.mark.parametrize("name", NAMED)
def test_the_text_is_that_of_plain_decoding(
    name: str, prompt_tokens: int, epts: int, sampler: Sampler
) -> None:
    expected = plain(name, sampler)
    for size, budget in ((0, 64), (40, 20), (9, 3 * (prompt_tokens % 2))):
        drafter = drafter_on(target_of(name), prompt_tokens, epts, size)
        output, rounds, _ = generate(
            target_of(name), drafter, some_prompt(17), 16, sampler=sampler, budget=budget
        )
        assert output == expected
        drafted = any(len(round.tree) for round in rounds)
        # The root's prompt token, a guess, and one after it.
        assert drafted == (budget >= 1 + 2 * epts)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_trees_are_those_of_all_states(name: str) -> None:
    drafter = drafter_on(target_of(name), 3, 2, 40)
    _, rounds, _ = generate(target_of(name), drafter, some_prompt(17), 16)
    assert max(rounds[0].tree.depths) == 3 and min(rounds[0].tree.tokens) >= VOCAB
    assert len(rounds[0].tree) == 3 * 2
    assert all(min(round.tree.tokens) < VOCAB for round in rounds[1:-1])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_texts_of_a_ragged_batch_are_those_that_each_has_alone(name: str) -> None:
    target = target_of(name)
    jobs = []
    for place, length in enumerate((3, 29, 1, 16)):
        sampler = Sampler(seed=place, temperature=0.8 * (place % 2))
        prompt = some_prompt(length, seed=length)
        expected = naive_stream(target, prompt, 6 + 5 * place, sampler)
        jobs.append((prompt, sampler, expected, drafter_on(target, 1 + place, 1 + place % 2, 20)))
    generations = [
        Generation(prompt, drafter, Stopping(len(expected)), sampler)
        for prompt, sampler, expected, drafter in jobs
    ]
    play(target, generations)
    assert [each.output for each in generations] == [expected for _, _, expected, _ in jobs]


def test_a_text_ends_with_its_eos_id_wherever_it_comes() -> None:
    target, stream = target_of("llama"), plain("llama", WARM)
    for offset in range(16):
        for epts in (1 + offset % 2,):
            heard = Counting()
            output, _, _ = generate(
                target,
                drafter_on(target, 3, epts, 20),
                some_prompt(17),
                16,
                sampler=WARM,
                eos_ids={stream[offset]},
                conditions=[heard],
            )
            assert output == heard.heard == cut(stream, {stream[offset]})


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_nothing_is_read_beyond_the_limit(limit: int) -> None:
    """Prompt tokens too, or they would stand beyond the model's context."""
    target = target_of("gpt2")
    drafter = drafter_on(target, 4, 2, 40)
    output, rounds, _ = generate(target, drafter, some_prompt(17), limit)
    assert output == plain("gpt2", GREEDY)[:limit]
    said = 0
    for round in rounds:
        assert max(round.tree.depths, default=0) <= limit - said - 1
        said += len(round.path.tokens)


@pytest.mark.parametrize(
    ("name", "setting"), [("llama", "max_position_embeddings"), ("gpt2", "n_positions")]
)
def test_a_text_may_fill_the_models_context_to_the_last_position(name: str, setting: str) -> None:
    """Learned positions end there: a prompt token beyond would be an index out of range."""
    target = CausalLMTarget(new_model(name, "sdpa", F64, **{setting: 32}), check=False)
    expected = naive_stream(target, some_prompt(20), 12)
    for prompt_tokens in (1, 3, 4):
        drafter = drafter_on(target, prompt_tokens, 2, 40)
        output, _, reason = generate(target, drafter, some_prompt(20), 99)
        assert (output, reason) == (expected, "length")


@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "warm"])
def test_turns_of_a_conversation_go_on_with_the_same_drafter(sampler: Sampler) -> None:
    target = target_of("llama")
    drafter = drafter_on(target, 3, 1, 30)
    text = some_prompt(17)
    for turn in range(3):
        expected = naive_stream(target, text, 9, sampler)
        output, rounds, _ = generate(target, drafter, text, 9, sampler=sampler)
        assert output == expected
        assert min(rounds[0].tree.tokens) >= VOCAB
        text = [*text, *output, 5, 9 + turn]


class Meddled(Drafter):
    """A drafter some of whose trees another component drops or cuts."""

    def __init__(self, inner: Ppd, seed: int) -> None:
        self.inner = inner
        self.requires = inner.requires
        self.random = random.Random(seed)

    def start(self, text: TextStart) -> None:
        self.inner.start(text)

    def propose(self, budget: int) -> Tree:
        for smaller in (0, 5, 17):
            self.inner.propose(smaller)  # a planner may ask for several sizes
        tree = self.inner.propose(budget)
        way = self.random.randrange(4)
        return (tree, EMPTY, tree.clip(self.random.randint(0, 3)), tree)[way]

    def observe(self, round: Round) -> None:
        self.inner.observe(round)


@pytest.mark.parametrize("seed", range(6))
def test_rounds_without_a_tree_or_with_part_of_it_change_nothing(seed: int) -> None:
    for name, sampler in (("qwen2", WARM), ("llama", GREEDY)):
        target = target_of(name)
        drafter = Meddled(drafter_on(target, 3, 1 + seed % 2, 30), seed)
        output, rounds, _ = generate(target, drafter, some_prompt(17), 16, sampler=sampler)
        assert output == plain(name, sampler)
        for before, round in pairwise(rounds):
            if not len(before.tree) and len(round.tree):
                assert min(round.tree.tokens) >= VOCAB  # nothing is known to guess with


def test_a_consumer_may_stop_between_any_two_rounds_and_go_on() -> None:
    target, stream = target_of("llama"), plain("llama", WARM)
    for stop_after in (1, 2, 5, 9):
        drafter = drafter_on(target, 3, 1, 20)
        first = Generation(some_prompt(17), drafter, Stopping(16), WARM)
        for count, _ in enumerate(decode(target, [first]), start=1):
            if count == stop_after:
                break
        second = Generation(first.context, drafter, Stopping(16 - len(first.output)), WARM)
        play(target, [second])
        assert [*first.output, *second.output] == stream


def test_drafters_with_other_prompt_tokens_share_a_target() -> None:
    target = target_of("llama")
    drafters = [drafter_on(target, 2 + seed, 1 + seed, 20, seed=seed) for seed in range(3)]
    generations = [Generation(some_prompt(17), each, Stopping(16)) for each in drafters]
    play(target, generations)
    assert [each.output for each in generations] == [plain("llama", GREEDY)] * 3


def test_half_precision_logits_are_read_too() -> None:
    target = CausalLMTarget(tiny_model("llama", "sdpa", torch.bfloat16), check=False)
    output, rounds, _ = generate(target, drafter_on(target, 3, 2, 30), some_prompt(17), 10)
    assert len(output) == 10
    assert any(token < VOCAB for round in rounds for token in round.tree.tokens)


def test_the_toy_is_a_host_for_parts_of_any_size() -> None:
    assert random_parts(hidden=7).base.fingerprint == TOY
    toy = ToyTarget()
    drafter = Ppd(host_on(toy), parts=str(saved_parts(2, 1, hidden=7)))
    assert generate(toy, drafter, [3, 1, 4], 30)[0] == naive_stream(toy, [3, 1, 4], 30)
