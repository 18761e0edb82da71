"""Where texts lie in the cache: against a model of it that knows every slot."""

from __future__ import annotations

import math
import random
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.records import Path
from paceline.targets import kv_cache
from paceline.targets.cache_dtypes import CACHE_DTYPES, FLOAT32
from paceline.targets.kv_cache import TreeCache
from paceline.targets.text_slots import TextSlots


class Written:
    """A cache whose every slot holds the position and the token that were written there, as a pass
    over one layer would."""

    def __init__(self, kept_slots: int, grain: int = 16) -> None:
        self.texts = TextSlots(1, 0, grain, kept_bytes=kept_slots * 8)
        self.layer = self.texts.cache.layers[0]

    def read(self, slot: int, count: int) -> None:
        """The next pending tokens go into the cache."""
        self.texts.make_room({slot: count})
        text = self.texts[slot]
        tokens = torch.tensor(text.pending[:count], dtype=torch.float32)
        self.texts.cache.direct(text.start + len(text.cached), (0, self.texts.cache.slots))
        self.layer.update(tokens[None, None, :, None], tokens[None, None, :, None])
        text.have_read(count)

    def check(self) -> None:
        texts = [*self.texts._open.values(), *self.texts._kept]
        spans = sorted((text.start, text.start + text.capacity) for text in texts if text.capacity)
        assert all(place % self.texts._grain == 0 for span in spans for place in span)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert not spans or spans[-1][1] <= self.texts.as_json()["slots"] <= self.texts.cache.slots
        for text in texts:
            if text.cached:
                assert self.layer.keys is not None
                held = self.layer.keys[0, 0, text.start : text.start + len(text.cached), 0]
                assert held.tolist() == text.cached
                assert len(text.cached) <= text.capacity


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 700)), max_size=40))
def test_stretches_never_overlap_and_come_back(steps: list[tuple[int, int]]) -> None:
    cache, going, token = Written(0), list[int](), 0
    for kind, slots in steps:
        if kind == 0 and going:
            cache.texts.close(going.pop(slots % len(going)))
        elif kind == 1 and going:
            cache.texts[going[-1]].pending += [token] * slots
            cache.read(going[-1], slots)
        else:
            token += 1  # texts that share nothing
            going.append(cache.texts.open([token] * slots))
            cache.read(going[-1], slots - 1)
        cache.check()
    for slot in going:
        cache.texts.close(slot)
    cache.texts.forget()
    if size := cache.texts.as_json()["slots"]:
        slot = cache.texts.open([0] * (size + 1))
        cache.read(slot, size)
        assert (cache.texts[slot].start, cache.texts.as_json()["slots"]) == (0, size)


@pytest.mark.parametrize("kept_slots", [0, 200, 100_000])
@pytest.mark.parametrize("seed", range(12))
def test_texts_that_come_and_go_keep_what_was_read_for_them(seed: int, kept_slots: int) -> None:
    rng, cache = random.Random(seed), Written(kept_slots)
    going: list[int] = []
    for _ in range(120):
        what = rng.random()
        if what < 0.3 or not going:
            # Few beginnings, so that many texts share one.
            context = [rng.randrange(3)] * rng.randint(0, 60) + rng.choices(range(4), k=20)
            slot = cache.texts.open(context)
            assert [*cache.texts[slot].cached, *cache.texts[slot].pending] == context
            going.append(slot)
        elif what < 0.5:
            cache.texts.close(going.pop(rng.randrange(len(going))))
        elif what < 0.55:
            cache.texts.forget()
        else:
            slot = rng.choice(going)
            text = cache.texts[slot]
            if len(text.pending) > 1:
                cache.read(slot, rng.randint(1, len(text.pending) - 1))
            else:
                text.pending += rng.choices(range(4), k=rng.randint(1, 30))
        cache.check()
        held = sum(text.capacity for text in cache.texts._kept[:-1])
        assert held <= kept_slots


def test_a_chat_goes_on_in_its_own_stretch_and_others_copy_what_they_share() -> None:
    cache = Written(100_000)
    system = list(range(100))
    first = cache.texts.open([*system, *[7] * 100])
    cache.read(first, 199)
    place = cache.texts[first].start
    cache.texts.close(first)
    other = cache.texts.open([*system, 9, 9])  # would lose a hundred tokens of the first
    assert cache.texts[other].start != place and len(cache.texts[other].cached) == 100
    again = cache.texts.open([*system, *[7] * 99, 5, 6])
    assert cache.texts[again].start == place and len(cache.texts[again].cached) == 199
    cache.check()


def test_a_text_larger_than_what_may_be_kept_is_kept_until_the_next_one() -> None:
    cache = Written(kept_slots=32)
    slot = cache.texts.open(list(range(200)))
    cache.read(slot, 199)
    cache.texts.close(slot)
    again = cache.texts.open([*range(200), 1])
    assert len(cache.texts[again].cached) == 199


@pytest.mark.parametrize("closed", [1, 2])
def test_what_is_copied_from_stays_and_is_evicted_last(closed: int) -> None:
    cache = Written(kept_slots=512 * (closed - 1))  # with the last one, the pool is full
    slots = [cache.texts.open([token] * 200) for token in range(closed)]
    for slot in slots:
        cache.read(slot, 199)
    for slot in slots:
        cache.texts.close(slot)
    cache.texts.open([*[0] * 100, 9, 9])
    assert cache.texts.cache.slots == 512
    again = cache.texts.open([0] * 200)
    assert len(cache.texts[again].cached) == 199
    cache.check()


def test_texts_that_are_taken_over_keep_their_numbers() -> None:
    before, after = Written(0), Written(0)
    slot = before.texts.open([1, 2, 3])
    before.read(slot, 2)
    after.texts.take_over(before.texts)
    other = after.texts.open([4])
    assert (after.texts[slot].pending, after.texts[other].pending) == ([1, 2, 3], [4])


def test_a_text_adopts_what_it_lacks_and_loses_nothing_to_one_that_knows_less() -> None:
    mine, others = Written(0), Written(0)
    slot = mine.texts.open([1, 2, 3, 4, 5, 6])
    mine.read(slot, 3)
    for context, known in (([1, 2, 9], 3), ([1, 2, 3, 4, 5, 7], 5)):
        others.read(others.texts.open(context), len(context) - 1)
        mine.texts.adopt(slot, others.texts)
        assert len(mine.texts[slot].cached) == known
        mine.check()


def test_accepted_nodes_of_several_texts_are_gathered_together() -> None:
    cache = Written(0)
    slots = [cache.texts.open([token, token, token]) for token in (1, 2)]
    for slot in slots:
        cache.read(slot, 2)
        cache.texts.make_room({slot: 5})
        text = cache.texts[slot]
        cache.texts.cache.direct(text.start + 2, (0, cache.texts.cache.slots))
        nodes = torch.tensor([float(text.pending[0]), 10.0, 11.0, 12.0, 13.0])
        cache.layer.update(nodes[None, None, :, None], nodes[None, None, :, None])
        text.tree_at = text.start + 3
    cache.texts.commit({slots[0]: Path((1, 3), (11, 13, 5)), slots[1]: Path((0,), (10, 6))})
    cache.check()
    assert cache.texts[slots[0]].cached == [1, 1, 1, 11, 13]
    assert cache.texts[slots[1]].cached == [2, 2, 2, 10]


@pytest.fixture
def most_slots(monkeypatch: pytest.MonkeyPatch) -> int:
    """Slots for which there is memory."""
    allocate, most = kv_cache._allocate, 1024

    def bounded(states: torch.Tensor, slots: int) -> torch.Tensor:
        if slots > most:
            raise torch.OutOfMemoryError
        return allocate(states, slots)

    monkeypatch.setattr(kv_cache, "_allocate", bounded)
    monkeypatch.setattr(kv_cache, "_AHEAD", 1)  # as on a GPU
    return most


def test_a_text_for_which_there_is_no_memory_fails_alone(most_slots: int) -> None:
    cache = Written(0)
    small = cache.texts.open([1] * 200)
    cache.read(small, 100)
    large = cache.texts.open([2] * most_slots)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            cache.read(large, most_slots - 1)
    cache.texts.close(large)
    cache.read(small, 99)
    other = cache.texts.open([3] * 300)
    cache.read(other, 299)
    cache.check()


def test_what_is_kept_is_evicted_where_there_is_no_memory_for_it(most_slots: int) -> None:
    cache = Written(kept_slots=100_000)
    for token in (1, 2, 3):
        slot = cache.texts.open([token] * 250)
        cache.read(slot, 249)
        cache.texts.close(slot)
    large = cache.texts.open([4] * 600)
    cache.read(large, 599)
    cache.check()


def test_a_first_text_that_needs_too_much_memory_leaves_room_for_a_smaller_one(
    most_slots: int,
) -> None:
    cache = Written(0)
    for size in (2 * most_slots, 100):
        slot = cache.texts.open([1] * size)
        if size > most_slots:
            with pytest.raises(torch.OutOfMemoryError):
                cache.read(slot, size - 1)
            cache.texts.close(slot)
    cache.read(slot, size - 1)
    cache.check()


def test_memory_that_the_pool_has_outgrown_is_free_at_once() -> None:
    cache = TreeCache(1)
    cache.reserve(8)
    cache.allocate({0: (2, 4, 4)}, CACHE_DTYPES[FLOAT32])
    cache.move([3], [1])
    outgrown = weakref.ref(cache.tensors()[0][0])
    cache.reserve(640)
    assert outgrown() is None


@pytest.mark.parametrize("most", [1 << 40, 1 << 14, 0])
def test_a_pool_grows_in_place_as_far_as_the_system_reserves_memory(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    reserved = kv_cache.lazy_zeros

    def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if math.prod(shape) > most:
            raise OSError(12, "Cannot allocate memory")
        return reserved(shape, dtype)

    monkeypatch.setattr(kv_cache, "lazy_zeros", lazy_zeros)
    cache = TreeCache(1)
    written = torch.arange(64.0).view(1, 2, 8, 4)
    places = []
    for slots in (8, 16, 600):
        cache.reserve(slots)
        cache.direct(0, (0, slots))
        cache.layers[0].update(written, -written)
        ((keys, values),) = cache.tensors()
        cache.reserve(slots + 4)
        ((keys, values),) = cache.tensors()
        assert min(keys.shape[2], values.shape[2]) >= slots + 4
        assert torch.equal(keys[:, :, :8], written) and torch.equal(values[:, :, :8], -written)
        assert not keys[:, :, 8:].any() and not values[:, :, 8:].any()
        places.append(keys.data_ptr())
    assert places[1] != places[2] and (places[0] == places[1]) == bool(most)


def test_memory_that_a_processor_lacks_is_told_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what is kept of closed texts makes room."""

    def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(kv_cache, "lazy_zeros", lazy_zeros)
    cache = TreeCache(1)
    cache.allocate({0: (1, 4, 4)}, CACHE_DTYPES[FLOAT32])
    with pytest.raises(torch.OutOfMemoryError, match=r"no memory for \d+ slots"):
        cache.reserve(1 << 50)


def test_states_grow_where_only_a_part_of_the_memory_was_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside states a layer keeps no values, which always find room for more."""
    reserved = kv_cache.lazy_zeros

    def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if math.prod(shape):
            raise OSError(12, "Cannot allocate memory")
        return reserved(shape, dtype)

    monkeypatch.setattr(kv_cache, "lazy_zeros", lazy_zeros)
    cache = TreeCache(1, 8)
    for slots in (256, 512):
        cache.reserve(slots)
        cache.direct(slots - 4, (0, slots))
        cache.put_states(torch.ones(1, 4, 8))
        assert cache.states(slots - 4, 4).all()
    cache.reserve(600)  # compiled passes write them in place
    assert len(cache.all_states()) >= 600
