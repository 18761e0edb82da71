"""Figures as SVG: transparent, in the reader's font and in the surrounding text's colour.

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from paceline.bench.report.blocks import Plot
from paceline.bench.report.colours import INK, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _WIDE = 480, 600
"""Widths of figures in points; browsers show them as pixels."""

_LABEL_LETTERS = 24

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

# Follows the reader's system setting for dark pages.
_ALONE = "<style>svg{color:#1c2127}@media (prefers-color-scheme:dark){svg{color:#e4e7ea}}</style>"

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may hold a "$"
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "legend.fontsize": 11.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handleheight": 1.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
}


@contextmanager
def drawn(plot: Plot, height: float) -> Iterator[Figure]:
    """Draw a plot on a figure of this height in points; its name makes ids unique."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings: Any = {**_SETTINGS, "svg.hashsalt": plot.name}
    width = _WIDE if plot.wide else _WIDTH
    with rc_context(settings), warnings.catch_warnings():
        # The reader's font has the glyphs that matplotlib's lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure((width / 72, height / 72), layout="constrained")
        yield figure
        written = io.BytesIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    plot.svg = _mended(written.getvalue().decode(), plot.name)


@contextmanager
def chart(plot: Plot, height: float, x: str, y: str = "") -> Iterator[Axes]:
    """Draw a plot of one pair of axes with these labels, and a legend above them. Without a label
    of the y axis, it names rows."""
    with drawn(plot, height) as figure:
        axes = figure.subplots()
        yield axes
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        grid(axes, "y" if y else "x")
        _add_legend(figure, axes)


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Use as many columns as fit; the figure grows by the legend's height."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:  # matplotlib leaves out those that begin with "_"
        return
    for columns in range(len(labels), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)


def grid(axes: Axes, direction: Literal["x", "y"]) -> None:
    """Draw faint grid lines; direction: "x" for vertical ones."""
    axes.grid(visible=True, axis=direction, color=INK, alpha=0.14, linewidth=0.8)
    axes.tick_params(length=0)


def drawable(label: str) -> str:
    """The label with "?" for what is no text, which matplotlib refuses."""
    return label.encode(errors="replace").decode()


def folded(label: str) -> str:
    """Break a label into lines that fit beside an axis; see `drawable`."""
    spaced = re.sub(r"(?<=[,:/])(?=\S)", "\x00", drawable(label))
    pieces: list[str] = [""]
    for piece in spaced.split("\x00"):
        if pieces[-1] and len(pieces[-1] + piece) > _LABEL_LETTERS:
            pieces.append("")
        pieces[-1] += piece
    return "\n".join(line for piece in pieces for line in textwrap.wrap(piece, _LABEL_LETTERS))


def _mended(svg: str, name: str) -> str:
    """Set text in the reader's font and in `currentColor`; prefix ids with `name`."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {_FONTS}", svg)
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", rf"\g<1> {_FONTS}", svg)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'(<svg\b[^>]*? width="[\d.]+)pt(" height="[\d.]+)pt"', r'\g<1>\g<2>"', svg)
    return svg.replace(INK, "currentColor")


def alone(svg: str) -> str:
    """Make it a file of its own."""
    return re.sub(r"(<svg\b[^>]*>)", rf"\g<1>{_ALONE}", svg, count=1)


def inline(svg: str, label: str) -> str:
    """Make it part of a page, which sets hues and size; `label` must be escaped."""
    svg = svg[svg.index("<svg") :]
    start = rf'<svg \g<1> role="img" aria-label="{label}">'
    return re.sub(r'<svg\b[^>]*?(viewBox="[^"]*")[^>]*>', start, themed(svg), count=1)
