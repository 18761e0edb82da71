"""Plots of ablations. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.bench.ablations import QUANTITIES, Ablation
from paceline.bench.metrics import Group
from paceline.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "draw", "save"]

_PANEL_INCHES = (4.0, 3.2)


def check_matplotlib() -> None:
    """Raise UsageError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib: pip install 'paceline[bench]'")


def draw(ablation: Ablation, group: Group) -> Figure:
    """Draw one panel per quantity, one line per value of the first setting; failures are gaps."""
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    figure = Figure((width * len(ablation.panels), height), layout="constrained")
    figure.suptitle(ablation.title, fontsize="medium", wrap=True)
    panels = figure.subplots(1, len(ablation.panels), squeeze=False)[0]
    for panel, name in zip(panels, ablation.panels):
        for label, line in ablation.lines.items():
            points = {
                value: QUANTITIES[name](group.methods[method])
                for value, method in line.items()
                if method in group.methods
            }
            panel.plot(list(points), list(points.values()), marker="o", markersize=3, label=label)
        panel.set_xlabel(ablation.axis)
        panel.set_title(name, fontsize="medium")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.svg and STEM.png. Raises UsageError if that fails."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png")]
    for path in paths:
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return paths
