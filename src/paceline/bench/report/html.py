"""A report as one self-contained HTML page."""

from __future__ import annotations

import base64
import re
from importlib.resources import files
from pathlib import Path

from paceline.bench.report.blocks import PICTURE_TYPES, Document, Plot
from paceline.bench.report.colours import style_sheet
from paceline.bench.report.drawing import inline
from paceline.errors import readable

_LONG_NAME = 14


def html(document: Document) -> str:
    """Render the page; the template escapes everything from results."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    def breakable(text: str) -> Markup:
        """Allow line breaks in long names."""
        if len(text) <= _LONG_NAME:
            return escape(text)
        return Markup("<wbr>").join(re.split(r"(?<=[:/,])", text))

    here = files(__package__)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    style = style_sheet() + here.joinpath("page.css").read_text(encoding="utf-8")

    def drawn(plot: Plot) -> Markup:
        return Markup(inline(plot.svg, str(escape(plot.caption))))  # noqa: S704

    return template.render(
        document=document,
        style=Markup(style),  # noqa: S704
        drawn=drawn,
        breakable=breakable,
        embedded=_embedded,
    )


def _embedded(path: Path) -> str:
    """The picture as a data URL."""
    with readable(f"the picture {path}"):
        content = base64.b64encode(path.read_bytes()).decode()
    return f"data:{PICTURE_TYPES[path.suffix]};base64,{content}"
