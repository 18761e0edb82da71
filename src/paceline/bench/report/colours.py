"""Hues that every kind of colour vision can distinguish, on light and dark pages.

Plain decoding is grey, paceline's methods are cool, baselines warm. Drawings use the light-mode
hues; a page replaces each with a variable that follows its mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from paceline.bench.baselines import is_baseline
from paceline.bench.trial import PLAIN

INK = "#010203"
"""Placeholder for the text colour in drawings; used for nothing else."""

OTHERS = "other software"
PLAIN_HUE = "#8b949e"
_COOL = {"#1f6fd0": "#4c8ef5", "#117c6b": "#91f8ee", "#2d9ef4": "#80c0f0", "#4626a0": "#6456bb"}
_WARM = {"#e07b12": "#f09a3e", "#7d0060": "#915178", "#665303": "#f8e691", "#581308": "#ca3e1b"}
_PARTS = {
    "#4626a1": "#7b67d8",
    "#e07b13": "#f09a3e",
    "#3b8de0": "#62b0f5",
    "#0e6f60": "#8ff0e2",
    "#a9b1ba": "#6a737d",
}
_IN_THE_DARK = {PLAIN_HUE: PLAIN_HUE} | _COOL | _WARM | _PARTS

OWN_HUES, PART_HUES = tuple(_COOL), tuple(_PARTS)
KINDS = {"plain decoding": (PLAIN_HUE,), "paceline": OWN_HUES, OTHERS: tuple(_WARM)}
"""Kind of method -> its hues."""


def method_hues(methods: Iterable[str]) -> dict[str, str]:
    """Assign each method a hue, in order; after four of a kind they repeat."""
    hues = {kind: cycle(each) for kind, each in KINDS.items()}
    return {method: next(hues[kind_of(method)]) for method in methods}


def kind_of(method: str) -> str:
    """One of `KINDS`."""
    if method == PLAIN:
        return "plain decoding"
    return OTHERS if is_baseline(method) else "paceline"


def style_sheet() -> str:
    """The variables that `themed` drawings use."""
    light = "".join(f"{_variable(hue)}:{hue};" for hue in _IN_THE_DARK)
    dark = "".join(f"{_variable(hue)}:{other};" for hue, other in _IN_THE_DARK.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def themed(svg: str) -> str:
    """Replace hues with variables."""
    for hue in _IN_THE_DARK:
        svg = svg.replace(hue, f"var({_variable(hue)})")
    return svg


def _variable(hue: str) -> str:
    return f"--hue-{hue[1:]}"
