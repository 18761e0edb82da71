"""Drafters that hear the noise of draws: they guess what is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.head_parts import saved_heads
from tests.helpers import naive_stream, play
from tests.tiny_models import VOCAB, some_prompt, tiny_model
from transformers import TemperatureLogitsWarper

from paceline.drafters import Host, draw_noise, make_drafter
from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.guesses import guesses_of
from paceline.loop import Generation
from paceline.noise import gumbel, noise_at
from paceline.records import TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget

CPU = torch.device("cpu")


@dataclass
class Columns:
    outputs: int
    token_ids: torch.Tensor | None = None
    device: torch.device = CPU


@dataclass
class Bias:
    bias: torch.Tensor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.bias


def begun(to: Any, vocabulary: int, sampler: Sampler | None) -> DrawNoise:
    noise = DrawNoise(to, vocabulary)
    noise.begin(sampler)
    return noise


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(seed=7, temperature=0.6),
        Sampler(
            seed=7, temperature=2.0, processors=(TemperatureLogitsWarper(0.3), lambda *_: _[1])
        ),
    ],
    ids=["sampler", "processor"],
)
def test_rows_are_the_noise_of_their_positions(sampler: Sampler) -> None:
    some = torch.tensor([3, 90, 4])
    for to, tokens in ((Columns(100), slice(100)), (Columns(3, some), some.numpy())):
        noise = begun(to, 100, sampler)
        for position, count in ((5, 3), (6, 4), (40, 1), (5, 2)):
            rows = noise.rows(position, count)
            assert rows is not None and rows.shape == (count, to.outputs)
            for place, row in enumerate(rows, start=position):
                expected = 0.6 * gumbel(7, place, 100)[tokens]
                assert row.numpy() == pytest.approx(expected, rel=1e-5)


def test_where_nothing_is_drawn_there_is_none() -> None:
    for sampler in (None, GREEDY, Sampler(seed=3), Sampler(temperature=1.0, top_k=1)):
        assert begun(Columns(9), 9, sampler).rows(4, 2) is None


def test_noise_of_a_position_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def counted(seed: int, position: int, size: int, tokens: Any) -> Any:
        made.append(position)
        return noise_at(seed, position, size, tokens)

    monkeypatch.setattr(draw_noise, "noise_at", counted)
    sampler = Sampler(seed=3, temperature=1.0)
    noise = begun(Columns(9), 9, sampler)
    for position, count in ((5, 8), (6, 2), (7, 8)):
        assert noise.rows(position, count) is not None
        noise.begin(Sampler(seed=3, temperature=1.0))  # resumed
    assert made == list(range(5, 15))
    noise.begin(Sampler(seed=4, temperature=1.0))
    assert noise.rows(7, 1) is not None
    assert made[-1] == 7


def test_samplers_are_not_compared_by_their_processors() -> None:
    noise = DrawNoise(Columns(9), 9)
    for _ in range(2):
        processor = Bias(torch.zeros(9))
        noise.begin(Sampler(temperature=1.0, processors=(processor,)))
        assert noise.rows(3, 2) is not None


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_who_has_the_targets_logits_guesses_what_it_draws(temperature: float) -> None:
    sampler = Sampler(seed=11, temperature=temperature)
    logits = 2 * torch.randn(40, 50, generator=torch.Generator().manual_seed(1))
    noise = begun(Columns(50), 50, sampler).rows(1, 40)
    guesses = guesses_of(logits, 3, None, noise)
    drawn = [sampler.draw(row, [0] * position) for position, row in enumerate(logits, start=1)]
    assert [tokens[0] for tokens in guesses.tokens] == drawn


@pytest.mark.parametrize("method", ["medusa", "chimera", "eagle"])
def test_guesses_follow_the_noise_of_the_text(method: str) -> None:
    """Other seeds other guesses, and the same in a text that goes on elsewhere; greedy texts none."""
    target = CausalLMTarget(tiny_model("llama"), check=False)
    folder = saved_heads(method, hidden=32, vocab=VOCAB, fingerprint="tiny")
    drafter = make_drafter(f"{method}:parts={folder}", Host(target, "tiny"))
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))

    def proposed(sampler: Sampler | None) -> tuple[int, ...]:
        drafter.start(TextStart(some_prompt(6), sampler=sampler))
        drafter.observe_states(states)
        return drafter.propose(8).tokens

    plain = proposed(None)
    drawn = {proposed(Sampler(seed=seed, temperature=5.0)) for seed in range(6)}
    assert len(drawn) > 3 and proposed(GREEDY) == plain
    assert proposed(Sampler(seed=4, temperature=1e-4)) == plain


@pytest.mark.parametrize("method", ["medusa", "chimera", "eagle"])
def test_drawn_texts_are_those_of_plain_decoding(method: str) -> None:
    model, sampler = tiny_model("llama", dtype=torch.float64), Sampler(seed=5, temperature=1.1)
    target = CausalLMTarget(model, check=False)
    folder = saved_heads(method, hidden=32, vocab=VOCAB, fingerprint="tiny")
    drafter = make_drafter(f"{method}:parts={folder}", Host(target, "tiny"))
    generation = Generation(some_prompt(9), drafter, Stopping(40), sampler)
    play(target, [generation], budget=9)
    alone = CausalLMTarget(model, check=False)
    assert generation.output == naive_stream(alone, some_prompt(9), 40, sampler)
