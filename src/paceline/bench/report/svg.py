"""Post-process matplotlib's SVG: replace fonts and text colour, for a file or a page."""

from __future__ import annotations

import re

from paceline.bench.report.colours import INK, themed

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

# Follows the reader's system setting for dark pages.
_ALONE = "<style>svg{color:#1c2127}@media (prefers-color-scheme:dark){svg{color:#e4e7ea}}</style>"


def mended(svg: str, name: str) -> str:
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
