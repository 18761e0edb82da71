"""Figures from papers, for tables that compare them with ours; papers.json names their sources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("papers.json")


@cache
def figures(paper: str, table: str) -> dict[str, Any]:
    """The rows of a paper's table, by label. Raises KeyError for an unknown paper or table."""
    papers = json.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, Any] = papers[paper]["tables"][table]["rows"]
    return found
