"""Trees as text and as figures, and the plot of predicted and measured speed-ups."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planning.tables import VICUNA

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd.tree_picture import survey_figure, tree_figure, tree_text
from paceline.planning.ppd.tree_search import build_tree, survey_widths

CURVE = CostCurve(
    tuple(CostPoint(width, 128, 20 + 0.4 * width) for width in (1, 4, 8, 16, 32, 64, 128))
)


def test_the_example_of_the_docstring() -> None:
    text = tree_text(build_tree(AcceptanceTable(((0.5, 0.25),)), 4))
    assert text.splitlines() == [
        "state 1, 100% of the rounds: 2 guesses, 2 prompt tokens, 6 rows, 0.75 accepted",
        "root +1",
        "├── 1 50.0% +1",
        "└── 2 25.0% +1",
    ]


def test_states_come_by_frequency_and_nodes_below_their_parents() -> None:
    blocks = tree_text(build_tree(VICUNA, 20)).split("\n\n")
    assert [block[:7] for block in blocks] == ["state 2", "state 3", "state 1"]
    assert blocks[0].splitlines()[1:5] == [
        "root +3",
        "├── 1 48.3% +2",
        "│   ├── 1 12.7% +2",
        "│   ├── 2 7.0% +1",
    ]


def test_a_figure_has_a_panel_for_every_state_that_occurs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tree_figure(build_tree(VICUNA, 105))
    assert len(figure.axes) == 2
    figure.savefig(tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").stat().st_size > 1000


def test_predictions_and_measurements_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    survey = survey_widths(VICUNA, CURVE)
    measured = {16: [1.2, 1.3, 1.1], 32: [1.4, 1.5, 1.45]}
    figure = survey_figure(survey, measured)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["predicted"].get_xdata()) == [one.width for one in survey]
    assert list(lines["predicted"].get_ydata()) == [one.speedup for one in survey]
    assert list(lines["measured"].get_ydata()) == [1.2, 1.45]
    assert "measured" not in {
        line.get_label() for line in survey_figure(survey).axes[0].get_lines()
    }
    figure.savefig(tmp_path / "survey.png")
