"""A plot of predicted and measured speed-up by the number of rows (PPD, figure 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.planning.ppd.tree_search import FittedTree, fastest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["survey_figure"]

_INCHES = (7.0, 4.2)


def survey_figure(
    survey: Sequence[FittedTree], measured: Mapping[int, Sequence[float]] | None = None
) -> Figure:
    """Plot the speed-up over plain decoding that passes of each width promise, and have brought.

    measured: width -> speed-ups, one per repetition; drawn as their median and range.

    Raises UsageError if matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color="0.7", linewidth=1, linestyle="--", label="plain decoding")
    axes.plot(
        [one.width for one in survey], [one.speedup for one in survey], "o-", label="predicted"
    )
    axes.plot(
        [one.width for one in survey],
        [one.tree.tokens_per_pass for one in survey],
        ":",
        color="0.5",
        label="tokens per pass",
    )
    best = fastest(survey)
    if best is not None:
        axes.axvline(best.width, color="C0", linewidth=6, alpha=0.15, zorder=0)
    if measured:
        widths = sorted(measured)
        axes.plot(widths, [median(measured[width]) for width in widths], "s", label="measured")
        for width in widths:
            low, high = min(measured[width]), max(measured[width])
            axes.plot([width, width], [low, high], color="C1", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([one.width for one in survey], [str(one.width) for one in survey])
    axes.minorticks_off()
    axes.set_xlabel("rows of a pass: root, guesses and prompt tokens")
    axes.set_ylabel("speed-up over plain decoding")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return figure
