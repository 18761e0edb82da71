"""Sampling where the logits are: what a GPU does, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from paceline import noise as noise_module
from paceline import sampling, warping
from paceline.errors import ModelError
from paceline.noise import device_gumbel
from paceline.records import Path
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.tree import Tree
from paceline.verify import walk

CPU = torch.device("cpu")
SAMPLERS = [
    Sampler(seed=5, temperature=0.8),
    Sampler(seed=5, temperature=1.3, top_k=7),
    Sampler(seed=2**70 + 1, temperature=0.9, top_p=0.7),
    Sampler(seed=-3, temperature=1.0, top_k=20, top_p=0.9, min_p=0.02),
]

each_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=str)


def some_logits(rows: int, size: int = 50) -> torch.Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(1))


def noise(seed: int, position: int, size: int) -> np.ndarray[Any, Any]:
    return device_gumbel(seed, position, size, CPU).numpy()


def draw_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sampling, warping):
        monkeypatch.setattr(module, "draws_there", lambda device: True)


@pytest.fixture
def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more noise than a test looks at, or little more."""
    monkeypatch.setattr(noise_module, "_LEAST_NOISE", 64)


def test_noise_depends_on_seed_and_position_alone() -> None:
    expected = noise(7, 3, 40)
    torch.manual_seed(0)
    noise(7, 4, 40)
    before = torch.get_rng_state()
    assert np.array_equal(noise(7, 3, 40), expected)
    assert torch.equal(torch.get_rng_state(), before)
    for other in ((7, 4), (8, 3), (73, 3), (7 + 2**64, 3), (-7, 3)):
        assert not np.isin(noise(*other, 40), expected).any()


@pytest.mark.parametrize(("size", "larger"), [(1, 2), (1000, 1001), (151936, 152064)])
def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary(
    size: int, larger: int
) -> None:
    assert np.array_equal(noise(1, 2, size), noise(1, 2, larger)[:size])


def test_a_vocabulary_larger_than_most_gets_noise_for_all_of_it() -> None:
    assert np.isfinite(noise(1, 2, (1 << 18) + 1)).all()


@pytest.mark.usefixtures("little_noise")
def test_noise_is_gumbel_distributed_over_tokens_and_over_positions_and_over_seeds() -> None:
    for column in (
        noise(0, 0, 5000),
        np.array([noise(1, position, 3)[2] for position in range(400)]),
        np.array([noise(seed, 9, 1)[0] for seed in range(400)]),
    ):
        assert stats.kstest(column, "gumbel_r").pvalue > 1e-3


@each_sampler
def test_warping_many_rows_is_warping_each(sampler: Sampler) -> None:
    logits = some_logits(9)
    assert torch.equal(sampler.warp(logits), torch.stack([sampler.warp(row) for row in logits]))


@pytest.mark.usefixtures("little_noise")
@each_sampler
def test_rows_drawn_together_are_the_rows_drawn_one_by_one(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other rows there are, and in whatever order."""
    draw_on_any_device(monkeypatch)
    logits = some_logits(40)
    positions = [10 + row % 7 for row in range(40)]
    _, together = sampler.draw_together(logits, positions)
    assert together == [
        sampler.draw(row, [0] * position) for row, position in zip(logits, positions, strict=True)
    ]
    assert together[::-1] == sampler.draw_together(logits.flip(0), positions[::-1])[1]
    draw = sampler.over(logits, positions)
    assert [draw(row, [0]) for row in range(40)] == together
    assert len(set(together)) > 3
    logits[7] = torch.nan
    with pytest.raises(ModelError, match="are NaN"):
        sampler.over(logits, positions)(7, [0])


@pytest.mark.usefixtures("little_noise")
def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = some_logits(1, size=6).expand(4000, 6) / 2
    sampler = Sampler(seed=11, temperature=0.7)
    _, drawn = sampler.draw_together(logits[:400], range(400))
    expected = 400 * (logits[0].double() / 0.7).softmax(-1).numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=6), expected).pvalue > 1e-3


def test_the_walk_draws_every_row_at_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings share a position, and so the noise."""
    draw_on_any_device(monkeypatch)
    sampler, context, size = Sampler(seed=4, temperature=1.0), [1, 2, 3], 5
    flat = torch.zeros(8, size)  # with equal logits the noise alone decides
    said = [int(device_gumbel(4, 3 + step, size, CPU).argmax()) for step in range(4)]
    wrong = (said[0] + 1) % size
    tree = Tree((wrong, said[0], said[1], wrong, said[2]), (-1, -1, 1, 0, 2))
    path = walk(tree, flat[:6], sampler, context, Stopping(100))
    assert path == Path((1, 2, 4), tuple(said))


def test_on_a_cpu_rows_are_drawn_with_the_noise_of_every_cpu() -> None:
    logits, sampler = some_logits(3), Sampler(seed=4, temperature=1.0)
    draw = sampler.over(logits, [7, 8, 8])
    scores = (logits[0].double() + torch.from_numpy(sampling.gumbel(4, 7, 50))).argmax()
    assert draw(0, [0] * 7) == int(scores)


@pytest.mark.gpu
@each_sampler
def test_a_gpu_draws_the_same_for_any_number_of_rows(sampler: Sampler) -> None:
    logits = some_logits(33, size=151936).to("cuda", torch.bfloat16)
    positions = [10 + row % 7 for row in range(33)]
    _, together = sampler.draw_together(logits, positions)
    assert together == [
        sampler.draw(row, [0] * position) for row, position in zip(logits, positions, strict=True)
    ]
