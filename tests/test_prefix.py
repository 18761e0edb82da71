"""The common beginning of two texts against the loop over their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.prefix import common_prefix

texts = st.lists(st.integers(0, 2), max_size=20)


def naive(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(texts, texts, texts)
def test_it_is_as_long_as_the_loop_says(
    shared: list[int], one: list[int], other: list[int]
) -> None:
    left, right = [*shared, *one], [*shared, *other]
    expected = naive(left, right)
    assert common_prefix(left, right) == expected
    assert common_prefix(tuple(right), left) == expected  # any kinds of sequence, in any order


@given(texts, st.integers(0, 19), st.integers(1, 2))
def test_one_other_token_ends_it(text: list[int], place: int, step: int) -> None:
    place = min(place, len(text) - 1) if text else 0
    changed = [token + step * (at == place) for at, token in enumerate(text)]
    assert common_prefix(text, changed) == (place if text else 0)
