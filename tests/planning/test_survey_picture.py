"""The plot of predicted and measured speed-ups."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planning.tables import VICUNA

from paceline.errors import UsageError
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd import survey_picture
from paceline.planning.ppd.survey_picture import survey_figure
from paceline.planning.ppd.tree_search import survey_widths

CURVE = CostCurve(
    tuple(CostPoint(width, 128, 20 + 0.4 * width) for width in (1, 4, 8, 16, 32, 64, 128))
)


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


def test_without_matplotlib_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_picture, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        survey_figure(survey_widths(VICUNA, CURVE))
