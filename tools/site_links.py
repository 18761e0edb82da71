"""Hook of mkdocs: links out of docs/, which the site has no page for, become the names of files."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What a page says, before it is rendered."""
    return _OUTSIDE.sub(lambda found: f"{found[2]} (`{found[3]}`)", markdown)
