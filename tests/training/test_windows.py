"""Packing: every place once in an epoch, and nothing across texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.training.batches import Batch, Batches, endless, pack, stretches
from paceline.training.dataset import Dataset, Text
from paceline.training.settings import TrainerSettings
from paceline.training.state_cache import StateCache, StateShape

SETTINGS = TrainerSettings(heads=2, rows=3, length=24, context=6, read_share=0.34, seed=5)
SHAPE = StateShape("toy", 4, taps=(1,))


def text(number: int, prompt: int, answer: int, *, own: bool = True) -> Text:
    """A text whose tokens say which they are."""
    tokens = tuple(range(1000 * number, 1000 * number + prompt + answer))
    first = prompt - 1 if own else 0
    return Text(f"text/{number}", tokens, first, max(0, first + 1 - 6) if own else 0, own, own)


TEXTS = [text(1, 3, 9), text(2, 40, 70), text(3, 8, 3), text(4, 1, 23), text(5, 12, 4)]


class Counting:
    """A reader whose states are the tokens themselves, and in taps the numbers of layers."""

    def __init__(self, shape: StateShape) -> None:
        self.read_texts: list[str] = []
        self.taps = torch.tensor(shape.taps, dtype=torch.float16)

    def read(self, texts: list[Text]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self.read_texts += [each.id for each in texts]
        found = []
        for each in texts:
            tokens = torch.tensor(each.tokens[each.begin :])
            last = (tokens[:, None, None] % 1000).expand(-1, 1, 4).half()
            taps = self.taps[:, None].expand(len(tokens), -1, 4)
            found.append((torch.cat([taps, last], dim=1), tokens + 1))
        return found


@pytest.fixture
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    reads = [text(number, 0, 20, own=False) for number in (7, 8)]
    dataset = Dataset(TEXTS, TEXTS[:2], TEXTS[2:3], reads)
    cache = StateCache(tmp_path_factory.mktemp("states"), SHAPE)
    cache.fill(dataset, Counting)
    return Batches(dataset, cache, SETTINGS, torch.device("cpu"))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(3, 90)), min_size=1, max_size=8),
    heads=st.integers(1, 4),
    context=st.integers(1, 12),
)
def test_every_place_is_in_one_stretch(
    sizes: list[tuple[int, int]], heads: int, context: int
) -> None:
    settings = replace(SETTINGS, heads=heads, context=context)
    texts = [text(number, *size) for number, size in enumerate(sizes)]
    texts = [replace(one, begin=max(0, one.first + 1 - context)) for one in texts]
    found = stretches(texts, settings)
    places = Counter((each.text, place) for each in found for place in each.places)
    assert places == Counter(
        (number, place) for number, one in enumerate(texts) for place in one.places
    )
    for each in found:
        one = texts[each.text]
        assert one.begin <= each.begin <= each.places.start and len(each) <= settings.length
        # Whatever its heads guess is read with a place, unless the text ends before.
        assert each.end == min(len(one.tokens), each.places.stop + settings.ahead)
        assert each.places.start - each.begin + 1 in (context, each.places.start - one.begin + 1)
    windows = pack(found, settings.length)
    assert sorted(map(id, (each for window in windows for each in window))) == sorted(
        map(id, found)
    )
    assert all(sum(map(len, window)) <= settings.length for window in windows)


def test_every_epoch_holds_all_and_goes_on_anywhere() -> None:
    straight = [*islice(endless(TEXTS, SETTINGS, "train"), 40)]
    wanted = Counter((s.text, s.places) for s in stretches(TEXTS, SETTINGS))
    first = 0
    for _ in range(3):  # epochs may differ in their number of windows
        seen: Counter[tuple[int, range]] = Counter()
        while sum(seen.values()) < sum(wanted.values()):
            seen.update((each.text, each.places) for each in straight[first])
            first += 1
        assert seen == wanted
    assert [*islice(endless(TEXTS, SETTINGS, "train"), 17, 26)] == straight[17:26]
    other = endless(TEXTS, replace(SETTINGS, seed=6), "train")
    assert [*islice(other, 40)] != straight


def test_a_batch_says_whose_each_token_is(batches: Batches) -> None:
    for step, batch in zip(range(6), batches.train(0)):
        there = batch.text >= 0
        numbers = batch.tokens // 1000
        assert torch.equal(batch.tokens[there] % 1000, batch.position[there])
        assert torch.equal(batch.last[..., 0][there], batch.position[there].float())
        assert torch.equal(batch.greedy[there], batch.tokens[there] + 1)
        # Only the last row is of texts that are read.
        assert (numbers[:2][there[:2]] < 6).all() and (numbers[2][there[2]] > 6).all(), step
        points, valid = batch.points()
        assert int(valid.sum()) == int(batch.place.sum())
        assert batch.place.gather(1, points)[valid].all()
        sees = batch.sees(points)
        for row, at in zip(*valid.nonzero(as_tuple=True)):
            seen, point = batch.tokens[row][sees[row, at]], points[row, at]
            assert seen.tolist() == list(range(int(seen[0]), int(batch.tokens[row, point]) + 1))
            assert int(seen[0]) == int(batch.tokens[row, batch.start[row, point]])
            for ahead in range(4):
                follows = point + ahead < 24 and (
                    batch.tokens[row, point + ahead] == batch.tokens[row, point] + ahead
                )
                assert bool(batch.has(points, ahead)[row, at]) == bool(follows)


def test_words_that_are_not_the_targets_own() -> None:
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    own = torch.tensor([[False, True, True, False, True, True]])
    batch = Batch(tokens, torch.zeros(1, 6, 1, 2), *[tokens] * 5, own, own)
    points = torch.tensor([[0, 1, 2, 3]])
    assert batch.on_policy(points, 1).tolist() == [[True, True, False, True]]
    assert batch.on_policy(points, 2).tolist() == [[True, False, False, True]]


def test_the_same_batches_from_any_step_on(batches: Batches) -> None:
    every = [batch for _, batch in zip(range(5), batches.train(0))]
    for first in (1, 4):
        for one, other in zip(every[first:], batches.train(first)):
            assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values()))


def test_a_split_is_read_whole(batches: Batches) -> None:
    found = list(batches.whole(TEXTS[:2]))
    assert sum(int(batch.place.sum()) for batch in found) == sum(len(t.places) for t in TEXTS[:2])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"decay": 2.0}, "decay must be at most 1"),
        ({"loss": "x"}, "loss must be one of blend, kl, labels, got 'x'"),
        ({"validation": 0.0}, "shares of the texts"),
        ({"length": 99}, "has no room for places after 96 tokens of context"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainerSettings(**wrong)  # type: ignore[arg-type]


def test_the_rate_rises_stays_and_falls() -> None:
    settings = TrainerSettings(steps=100, warm_up=0.1, cool_down=0.2, learning_rate=1.0)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert set(rates[10:81]) == {1.0}
    assert rates[80:] == sorted(rates[80:], reverse=True) and rates[-1] == 0.05
    cosine = replace(settings, schedule="cosine")
    assert cosine.rate(10) == 1.0 and cosine.rate(55) == pytest.approx(0.5)
