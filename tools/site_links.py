"""A hook of mkdocs: links out of docs/, which have no page on the site, become file names."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's Markdown with such links replaced, before it is rendered."""
    return _OUTSIDE.sub(lambda found: f"{found[2]} (`{found[3]}`)", markdown)
