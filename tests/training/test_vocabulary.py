"""What is frequent in training texts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.training import frequent
from paceline.training.dataset import Text
from paceline.training.frequent import frequent_ngrams, frequent_tokens


@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=4),
    order=st.integers(1, 3),
    count=st.integers(0, 5),
)
def test_the_most_frequent_ngrams(texts: list[list[int]], order: int, count: int) -> None:
    counts = Counter(
        tuple(text[place : place + order])
        for text in texts
        for place in range(len(text) - order + 1)
    )
    ranked = sorted((ngram for ngram in counts if counts[ngram] > 1), key=lambda n: (-counts[n], n))
    found = frequent_ngrams(texts, order, count)
    assert found.dtype == torch.int32
    assert found.shape[1] == order
    assert [tuple(ngram) for ngram in found.tolist()] == ranked[:count]


def test_rare_ngrams_of_long_data_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these pairs but one occurs twice, far apart."""
    monkeypatch.setattr(frequent, "_MOST_COUNTED", 50)
    texts = [[7, 8, 100 + number] for number in range(1000)] * 2
    assert frequent_ngrams(texts, 2, 10).tolist() == [[7, 8]]
    assert len(frequent_ngrams(texts[:40] * 2, 2, 60)) == 41


def test_frequent_tokens() -> None:
    found = [
        Text("a", (9, 8, 8, 5, 5, 5, 3), 2, 0, True),
        Text("b", (9, 5, 3, 2), 0, 0, True),
    ]
    assert frequent_tokens(found, 1, 10, [7]).tolist() == [7]
    assert frequent_tokens(found, 3, 10, [7]).tolist() == [3, 5, 7]
    # Of the answers 5, 3, 2; then of the prompts 8, 9; then from 0 on.
    assert frequent_tokens(found, 4, 10, []).tolist() == [2, 3, 5, 8]
    assert frequent_tokens(found, 7, 10, []).tolist() == [0, 1, 2, 3, 5, 8, 9]
    assert frequent_tokens(found, 10, 10, []).tolist() == list(range(10))
