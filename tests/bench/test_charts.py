"""Plots of many methods."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from paceline.bench.entries import Entry
from paceline.bench.metrics import summarise
from paceline.bench.report import charts
from paceline.stats import Stats

METHODS = ["plain", *(f"anpd:n={n}" for n in range(2, 14)), "transformers", "transformers-lookup"]


def trial(method: str) -> Entry:
    """Two rounds, one of which guessed."""
    counts = Counter({1: 1, 2: 1})
    stats = Stats(rounds=2, tokens=3, acceptance_histogram=counts, depth_histogram=counts)
    return Entry("chat", "chat", "a", 0, 0, method, 9, 3, 0.5, stats)


def test_every_method_looks_different(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    lines, bars = [], []
    plot, barh = Axes.plot, Axes.barh

    def plotted(self: Axes, *args: Any, **how: Any) -> Any:
        lines.append((how["color"], how["marker"], how["linestyle"]))
        return plot(self, *args, **how)

    def barred(self: Axes, *args: Any, **how: Any) -> Any:
        bars.append((how["color"], how["hatch"]))
        return barh(self, *args, **how)

    monkeypatch.setattr(Axes, "plot", plotted)
    monkeypatch.setattr(Axes, "barh", barred)
    overall = summarise(map(trial, METHODS)).overall
    charts.acceptance("acceptance", overall)
    charts.speedups("speed-up", [overall])
    assert len({*lines}) == len(lines) == len(METHODS)
    assert len({*bars}) == len(bars) == len(METHODS) - 1
