"""The store of encoded n-grams, against what an encoder would say anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.ngram_cache import NgramCache
from paceline.errors import UsageError


class Encoder:
    """Any function of the ids; counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, ngrams: torch.Tensor) -> torch.Tensor:
        self.asked += len(ngrams)
        return torch.stack([ngrams.sum(-1), ngrams[:, -1]], -1).float()


Ngrams = st.lists(
    st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=5), max_size=20
)


@given(calls=Ngrams, capacity=st.integers(0, 6), beforehand=st.booleans())
def test_it_says_what_the_encoder_says(
    calls: list[list[tuple[int, ...]]], capacity: int, beforehand: bool
) -> None:
    encoder = Encoder()
    known = {(0, 0, 0): encoder(torch.tensor([[0, 0, 0]]))[0]} if beforehand else None
    encoder.asked = 0
    cache = NgramCache(encoder, capacity, known)
    for ngrams in calls:
        assert torch.equal(cache.states(ngrams), Encoder()(torch.tensor(ngrams)))
    counts = cache.counts
    assert counts.encoded == encoder.asked
    assert counts.disk == 0
    assert beforehand or counts.beforehand == 0
    assert capacity or counts.memory == 0
    asked = sum(len(set(ngrams)) for ngrams in calls)
    assert counts.beforehand + counts.memory + counts.encoded == asked


def test_who_was_not_used_for_longest_leaves_first() -> None:
    encoder = Encoder()
    cache = NgramCache(encoder, capacity=2)
    for ngram in [(1,), (2,), (1,), (3,), (1,)]:  # 3 drives out 2, since 1 was used later
        cache.states([ngram])
    assert (cache.counts.encoded, cache.counts.memory) == (3, 2)
    cache.states([(2,)])
    assert cache.counts.encoded == 4


def test_what_leaves_memory_is_found_on_disk_by_the_next_process_too(tmp_path: Path) -> None:
    file = tmp_path / "spill.sqlite"
    encoder = Encoder()
    cache = NgramCache(encoder, capacity=1, spill=file)
    for number in range(5):
        cache.states([(number,)])
    assert torch.equal(cache.states([(0,)]), Encoder()(torch.tensor([[0]])))
    assert (cache.counts.disk, encoder.asked) == (1, 5)
    another = NgramCache(encoder, capacity=1, spill=file)
    another.states([(1,), (2,)])
    assert (another.counts.disk, encoder.asked) == (2, 5)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "text.sqlite"
    file.write_text("this is no database, but a text that is long enough to be read as one" * 20)
    with pytest.raises(UsageError, match=r"text\.sqlite"):
        NgramCache(Encoder(), capacity=1, spill=file)
