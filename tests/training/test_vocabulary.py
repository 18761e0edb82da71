"""What is frequent in training texts."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.training.vocabulary import frequent_ngrams


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
