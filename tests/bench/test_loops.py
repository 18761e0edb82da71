"""Loops in texts, against a count by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.metrics import loop_share

RUN = 20


def by_hand(tokens: Sequence[int]) -> float:
    """A token is in a loop if a run of twenty around it stands somewhere else as well."""
    runs = range(len(tokens) - RUN + 1)
    inside = 0
    for place in range(len(tokens)):
        inside += any(
            begin <= place < begin + RUN
            and tokens[begin : begin + RUN] == tokens[other : other + RUN]
            for begin in runs
            for other in runs
            if other != begin
        )
    return inside / len(tokens) if tokens else 0.0


@st.composite
def repeating(draw: st.DrawFn) -> list[int]:
    """Texts put together of few pieces."""
    pieces = draw(
        st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=25), min_size=1, max_size=3)
    )
    order = draw(st.lists(st.integers(0, len(pieces) - 1), max_size=6))
    return [token for piece in order for token in pieces[piece]][:80]


@given(repeating())
def test_the_share_is_what_is_counted_by_hand(tokens: list[int]) -> None:
    assert loop_share(tokens) == by_hand(tokens)


def test_known_shares() -> None:
    line = list(range(RUN))
    assert loop_share([]) == loop_share([1] * RUN) == loop_share(list(range(100))) == 0.0
    assert loop_share([1] * (RUN + 1)) == 1.0
    assert loop_share([*line, 50, *line]) == 2 * RUN / (2 * RUN + 1)
    assert loop_share([*line, *range(50, 70), *line[:-1]]) == 0.0
