"""Tables of acceptance for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.cost_curve import CostCurve, CostPoint

# Of Vicuna-7B with three prompt tokens, recovered with four digits from the trees that come with
# the official code (Apache-2.0).
VICUNA = AcceptanceTable(
    (
        (0.4834, 0.1434, 0.0736, 0.0454, 0.0309, 0.0216, 0.0166, 0.0132, 0.0093, 0.0084),
        (0.2626, 0.1456, 0.0811, 0.0576, 0.0428, 0.0323, 0.0257, 0.0215, 0.0190, 0.0155),
        (0.1641, 0.1176, 0.0809, 0.0578, 0.0459, 0.0367, 0.0313, 0.0232, 0.0237, 0.0179),
    )
)


def curve(cost: float) -> CostCurve:
    """A plain pass of 1 ms, and `cost` for every other row."""
    return CostCurve(tuple(CostPoint(n, 8, 1 + cost * (n - 1)) for n in (1, 4, 8, 16, 32, 64)))


def tables(
    max_distances: int = 4, max_ranks: int = 4, certain: bool = True
) -> st.SearchStrategy[AcceptanceTable]:
    """Tables with ties, zeros, certainties (`certain`) and rows that do not fall."""

    @st.composite
    def draw_table(draw: st.DrawFn) -> AcceptanceTable:
        ranks = draw(st.integers(1, max_ranks))
        weights = st.lists(st.integers(0, 6), min_size=ranks, max_size=ranks)
        rows = []
        for _ in range(draw(st.integers(1, max_distances))):
            row = draw(weights)
            never = draw(st.integers(0 if certain and sum(row) else 1, 6))
            rows.append(tuple(weight / (sum(row) + never) for weight in row))
        return AcceptanceTable(tuple(rows))

    return draw_table()
