"""Draws that make little of the noise are those that make all of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline import noise
from paceline.noise import gumbel, noise_at, noisy_argmax
from paceline.sampling import Sampler

SIZE = 3000


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.floats(0.01, 30.0),
    st.sampled_from([1, 2, 7, SIZE]),
)
def test_the_winner_is_that_of_all_noise(
    seed: int, position: int, spread: float, size: int
) -> None:
    scores = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    scores[1::5] = -np.inf
    assert noisy_argmax(scores, seed, position) == (scores + gumbel(seed, position, size)).argmax()


def test_those_far_below_the_best_win_as_often_as_they_should() -> None:
    """They are the ones that are told by their bits."""
    scores = np.zeros(SIZE, dtype=np.float32)
    scores[0] = 6.0
    won = [noisy_argmax(scores, 1, position) for position in range(500)]
    full = [int((scores + gumbel(1, position, SIZE)).argmax()) for position in range(500)]
    assert won == full and 0 < won.count(0) < 400


@given(st.integers(-(2**66), 2**66), st.integers(0, 10**9))
def test_a_seed_has_the_same_noise_in_every_release(seed: int, position: int) -> None:
    raw = np.random.Philox(key=seed % 2**128, counter=position << 64).random_raw(3)
    uniform = [((int(each) >> 12) + 0.5) / 2**52 for each in raw]
    expected = [-math.log(-math.log(each)) for each in uniform]
    assert gumbel(seed, position, 3) == pytest.approx(expected)


@pytest.mark.parametrize("score", [-np.inf, np.inf, np.nan])
def test_scores_without_a_largest_number(score: float) -> None:
    scores = np.full(8, score, dtype=np.float32)
    assert noisy_argmax(scores, 1, 2) == (scores + gumbel(1, 2, 8)).argmax()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("best", [1e9 + 40, 3e38])
def test_huge_scores_are_compared_in_their_own_precision(best: float, kind: type) -> None:
    """A float32 may lie above a float64 that it stands for."""
    scores = np.array([-np.inf, 0, best, 1], dtype=kind)
    assert noisy_argmax(scores, 1, 2) == 2


def test_little_of_the_noise_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = list[int](), noise._noise_of

    def counted(bits: np.ndarray) -> np.ndarray:
        made.append(len(bits))
        return whole(bits)

    monkeypatch.setattr(noise, "_noise_of", counted)
    noisy_argmax(np.linspace(0, 40, SIZE, dtype=np.float32), 3, 4)
    assert sum(made) < SIZE / 2


def test_noise_of_some_tokens_is_theirs() -> None:
    tokens = np.array([5, 0, 17])
    assert np.array_equal(noise_at(3, 4, 40, tokens), gumbel(3, 4, 40)[tokens])


@given(st.integers(0, 1000))
def test_a_sampler_draws_what_it_decides(seed: int) -> None:
    row = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 4
    for sampler in (
        Sampler(seed=seed, temperature=0.7),
        Sampler(seed=seed, temperature=1.5, top_k=20, logit_bias=((3, 5.0),)),
        Sampler(seed=seed, temperature=1.0, top_p=0.8, min_p=0.01, frequency_penalty=1.0),
    ):
        allowed = torch.arange(SIZE) % 3 > 0 if seed % 2 else None
        for text in ([1], [1, 3, 3]):
            assert sampler.draw(row, text, allowed) == int(
                sampler.decide(row, text, allowed).argmax()
            )
