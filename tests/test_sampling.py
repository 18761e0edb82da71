"""The sampler against transformers' own classes, and its noise against statistics."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline.errors import PacelineError, UsageError
from paceline.loop import Generation, decode
from paceline.sampling import Sampler, gumbel
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from tests.helpers import Oracle, generate, naive_stream


def of_transformers(sampler: Sampler) -> LogitsProcessorList:
    """The processors that `generate(do_sample=True)` would use, in its order."""
    chain = LogitsProcessorList()
    if sampler.repetition_penalty is not None:
        chain.append(RepetitionPenaltyLogitsProcessor(sampler.repetition_penalty))
    chain.extend(sampler.processors)
    chain.append(TemperatureLogitsWarper(sampler.temperature))
    if sampler.top_k is not None:
        chain.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p is not None and sampler.top_p < 1:
        chain.append(TopPLogitsWarper(sampler.top_p))
    if sampler.min_p is not None:
        chain.append(MinPLogitsWarper(sampler.min_p))
    return chain


def warped(sampler: Sampler, row: torch.Tensor, context: list[int]) -> torch.Tensor:
    scores: torch.Tensor = of_transformers(sampler)(torch.tensor([context]), row[None].clone())
    return scores[0]


# Whole and half numbers make ties; -inf is what grammars and suppressed tokens leave.
logit_rows = st.lists(
    st.one_of(
        st.sampled_from([-math.inf, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]),
        st.floats(-20, 20, width=32),
    ),
    min_size=2,
    max_size=24,
).filter(lambda row: max(row) > -math.inf)

warping_samplers = st.builds(
    Sampler,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.3, 5.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 100]),
    top_p=st.sampled_from([None, 1e-9, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([None, 0.5, 1.0, 1.3]),
)


@settings(max_examples=300)
@given(logit_rows, warping_samplers, st.data())
def test_warped_scores_are_those_of_transformers_to_the_last_bit(
    row: list[float], sampler: Sampler, data: st.DataObject
) -> None:
    context = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, max_size=8))
    logits = torch.tensor(row)
    mine = sampler.warp(sampler.process(logits, context))
    assert torch.equal(mine, warped(sampler, logits, context))


def test_the_temperature_comes_before_the_ranks() -> None:
    """Dividing may make two neighbouring numbers equal, and equal ones share their rank."""
    row = torch.tensor([2 - 2**-22, 2 - 2**-23, 1.0])
    kept = set()
    for step in range(1, 100):
        sampler = Sampler(temperature=1 + step / 100, top_k=1)
        mine = sampler.warp(sampler.process(row, [0]))
        assert torch.equal(mine, warped(sampler, row, [0]))
        kept.add(int(mine.isfinite().sum()))
    assert kept == {1, 2}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_warped_in_single_precision(dtype: torch.dtype) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    sampler = Sampler(temperature=0.7, top_p=0.8)
    mine = sampler.warp(sampler.process(logits, [0]))
    assert mine.dtype == torch.float32
    assert torch.equal(mine, warped(sampler, logits.float(), [0]))


def test_the_penalty_counts_when_decoding_greedily_too() -> None:
    sampler = Sampler(repetition_penalty=2.0)
    row = torch.tensor([1.0, 1.5, -0.5])
    assert sampler.draw(row, [2]) == 1
    assert sampler.draw(row, [1, 1]) == 0


CONFIGURATIONS = {
    "temperature": Sampler(temperature=0.8),
    "top_k": Sampler(temperature=1.3, top_k=4),
    "top_p": Sampler(temperature=1.0, top_p=0.8),
    "min_p": Sampler(temperature=1.5, min_p=0.15),
    "repetition penalty": Sampler(temperature=1.0, repetition_penalty=1.8),
    "all": Sampler(temperature=1.2, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
}
ROW = torch.tensor([0.3, -1.2, 1.9, 0.3, 1.1, -0.4, 0.9, -3.0])


def assert_drawn_from(probabilities: np.ndarray, tokens: list[int]) -> None:
    """Chi-square at 1e-3; the seeds are fixed, so a sampler that passes always passes."""
    seen = np.bincount(tokens, minlength=len(probabilities))
    possible = probabilities > 0
    assert seen[~possible].sum() == 0
    expected = probabilities[possible] / probabilities[possible].sum() * len(tokens)
    assert stats.chisquare(seen[possible], expected).pvalue > 1e-3


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tokens_over_positions_are_distributed_as_transformers_probabilities(name: str) -> None:
    sampler = CONFIGURATIONS[name]
    probabilities = warped(sampler, ROW, [2, 5]).double().softmax(-1).numpy()
    context = [2, 5] * 1000
    tokens = [sampler.draw(ROW, context[:length]) for length in range(2, 2000)]
    assert_drawn_from(probabilities, tokens)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tokens_over_seeds_are_distributed_as_transformers_probabilities(name: str) -> None:
    sampler = CONFIGURATIONS[name]
    probabilities = warped(sampler, ROW, [2, 5]).double().softmax(-1).numpy()
    fields = {key: value for key, value in vars(sampler).items() if key != "seed"}
    tokens = [Sampler(seed=seed, **fields).draw(ROW, [2, 5]) for seed in range(2000)]
    assert_drawn_from(probabilities, tokens)


def test_pairs_of_neighbouring_tokens_are_independent() -> None:
    tokens = [Sampler(temperature=1.0).draw(ROW, [0] * length) for length in range(1, 3001)]
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    common = pairs.sum(0) > 100  # cells that are rare enough would need an exact test
    assert stats.chi2_contingency(pairs[common][:, common]).pvalue > 1e-3


@given(
    st.integers(-(2**70), 2**130),
    st.integers(0, 2**40),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary(
    seed: int, position: int, size: int, more: int
) -> None:
    assert np.array_equal(gumbel(seed, position, size), gumbel(seed, position, size + more)[:size])


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 50)), max_size=5))
def test_noise_does_not_depend_on_what_was_drawn_before(before: list[tuple[int, int]]) -> None:
    expected = gumbel(7, 3, 8)
    for seed, position in before:
        gumbel(seed, position, 5)
    assert np.array_equal(gumbel(7, 3, 8), expected)


def test_a_token_depends_on_the_position_and_not_on_the_text_before_it() -> None:
    sampler = Sampler(seed=3, temperature=1.0)
    for length in range(1, 200):
        assert sampler.draw(ROW, [0] * length) == sampler.draw(ROW, list(range(length)))


# Around the borders of machine words, where a key that passes through a float loses its low bits.
SEEDS = sorted(
    {0, 1, 2, 3, 12345, 2**31, 2**32, 2**53, 2**53 + 1}
    | {edge + step for edge in (2**63, 2**64) for step in (-2, -1, 0, 1, 2)}
    | {-1, -2, -3, -(2**31), -(2**63), -(2**63) - 1, 2**100, 2**100 + 1}
)


@pytest.mark.filterwarnings("error")
def test_every_seed_negative_or_huge_has_noise_of_its_own() -> None:
    noise = {seed: tuple(gumbel(seed, 0, 4)) for seed in SEEDS}
    equal = [(a, b) for a, b in itertools.combinations(SEEDS, 2) if noise[a] == noise[b]]
    assert equal == []


@given(st.integers(2**63 - 9, 2**64 + 9), st.integers(2**63 - 9, 2**64 + 9))
@example(2**63, 2**63 + 1)
def test_large_seeds_that_differ_draw_differently(one: int, other: int) -> None:
    same = np.array_equal(gumbel(one, 0, 4), gumbel(other, 0, 4))
    assert same == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((1, 0), (0, 1)), ((5, 10), (5, 11)), ((-1, 0), (1, 0))],
)
def test_noise_of_different_seeds_or_positions_is_uncorrelated(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    size = 20_000
    first, second = gumbel(*one, size), gumbel(*other, size)
    for shift in range(-3, 4):
        correlation = np.corrcoef(first[3:-3], np.roll(second, shift)[3:-3])[0, 1]
        assert abs(correlation) < 4.5 / math.sqrt(size)
    assert not np.intersect1d(first, second).size


def test_noise_is_gumbel_distributed_over_tokens_and_over_positions_and_over_seeds() -> None:
    columns = [
        gumbel(0, 0, 5000),
        np.array([gumbel(1, position, 3)[2] for position in range(5000)]),
        np.array([gumbel(seed, 9, 1)[0] for seed in range(5000)]),
    ]
    for column in columns:
        assert stats.kstest(column, "gumbel_r").pvalue > 1e-3


def test_millions_of_raw_draws_are_finite() -> None:
    noise = gumbel(11, 0, 4_000_000)
    assert np.isfinite(noise).all()
    assert len(np.unique(noise)) > 3_999_000


def test_the_most_extreme_random_bits_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """All zeros and all ones come once in 2**52 draws: no test meets them by chance."""

    class Extremes:
        def __init__(self, **settings: Any) -> None:
            pass

        def random_raw(self, size: int) -> np.ndarray:
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Extremes)
    low, high = gumbel(0, 0, 2)
    assert math.isfinite(low) and math.isfinite(high)
    assert low < -3 and high > 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_is_called_once_per_position_in_the_order_of_the_text(
    temperature: float,
) -> None:
    """Also where a path is accepted whole, and where wrong siblings stand beside it."""
    target, prompt = ToyTarget(seed=4), [3, 1, 4]
    story = [*prompt, *naive_stream(target, prompt, 30, Sampler(temperature=temperature))]
    for drafter in (Oracle(story), Oracle(story, siblings=2), Oracle(story, wrong=True)):
        texts: list[list[int]] = []

        def listen(
            input_ids: torch.Tensor, scores: torch.Tensor, texts: list[list[int]] = texts
        ) -> torch.Tensor:
            assert scores.shape == (1, 16)
            assert scores.dtype == torch.float32
            texts.append(input_ids[0].tolist())
            return scores

        sampler = Sampler(temperature=temperature, processors=(listen,))
        output, _, _ = generate(target, drafter, prompt, 30, sampler=sampler, budget=7)
        assert output == story[3:]
        assert texts == [story[:length] for length in range(3, 33)]


class BansInTurn:
    """A processor with a memory: which token it bans depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        banned = (self.calls * 5 + int(input_ids[0, -1])) % scores.shape[-1]
        return scores.index_fill(1, torch.tensor([banned]), -math.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_with_a_memory_says_the_same_with_every_drafter(temperature: float) -> None:
    def sampler() -> Sampler:
        return Sampler(temperature=temperature, processors=(BansInTurn(),))

    target, prompt = ToyTarget(seed=4), [3, 1, 4]
    stream = naive_stream(target, prompt, 30, sampler())
    story = [*prompt, *stream]
    for drafter in (Oracle(story), Oracle(story, siblings=2), Oracle(story, wrong=True)):
        assert generate(target, drafter, prompt, 30, sampler=sampler())[0] == stream


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
@pytest.mark.parametrize(("wrong", "words"), [(math.nan, "are NaN"), (-math.inf, "score -inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_token_is_drawn_from_scores_that_say_nothing(
    how: dict[str, float], wrong: float, words: str, dtype: torch.dtype
) -> None:
    rows = torch.full((2, 6), wrong, dtype=dtype)
    mute = Sampler(**how, processors=(lambda input_ids, scores: scores + wrong,))  # type: ignore[arg-type]
    for draw in (Sampler(**how).over(rows, [1, 1]), mute.over(torch.zeros(2, 6), [1, 1])):  # type: ignore[arg-type]
        with pytest.raises(PacelineError, match=words):
            draw(1, [0])
    if wrong < 0:
        rows[1, 4] = 0.0
        assert Sampler(**how).over(rows, [1, 1])(1, [0]) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_may_ask_a_network(temperature: float) -> None:
    network = torch.nn.Linear(6, 6)
    row = torch.randn(6, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(temperature=temperature, processors=(lambda _, scores: network(scores),))
    with torch.no_grad():
        expected = Sampler(temperature=temperature).draw(network(row[None])[0], [0])
    assert sampler.draw(row, [0]) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_writes_in_place_does_not_change_the_raw_logits(
    temperature: float,
) -> None:
    """`Round.logits` are the target's raw scores, which drafters learn from; transformers hands
    processors a copy for the same reason."""

    def ban(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 5] = -math.inf
        return scores

    target, prompt = ToyTarget(), [1, 2, 3]
    sampler = Sampler(temperature=temperature, processors=(ban,))
    generation = Generation(prompt, Oracle(prompt), Stopping(4), sampler)
    for round in decode(target, [generation]):
        assert torch.isfinite(round.logits).all()
    assert 5 not in generation.output


def test_greedy_rows_are_read_together_and_tell_the_same_as_one_by_one() -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    logits[3, [2, 7]] = 9.0  # of equal logits the first wins, as in transformers
    draw = Sampler().over(logits)
    rows = [draw(row, [0]) for row in range(6)]
    assert rows == [Sampler().draw(logits[row], [0]) for row in range(6)]
    assert rows == [int(torch.argmax(logits[row])) for row in range(6)]
    assert rows[3] == 2


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("temperature", value) for value in (-0.1, -1, NAN, INF, -INF)),
        *(("top_k", value) for value in (0, -5)),
        *(("top_p", value) for value in (0, 0.0, -0.2, 1.01, NAN, INF)),
        *(("min_p", value) for value in (-0.01, 1.5, NAN, INF)),
        *(("repetition_penalty", value) for value in (0, 0.0, -1.0, NAN)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UsageError, match=f"^{setting} must be .*, got {value}$"):
        Sampler(**settings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", 0), ("top_k", 1), ("top_p", 1), ("min_p", 0), ("min_p", 1)],
)
def test_the_borders_of_each_range_are_allowed(setting: str, value: float) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, setting: value}
    assert Sampler(**settings).draw(torch.tensor([0.0, 99.0]), [0]) == 1


@pytest.mark.parametrize("limit", [0, -3])
def test_a_token_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(UsageError, match=f"^max_new_tokens must be at least 1, got {limit}$"):
        Stopping(limit)
