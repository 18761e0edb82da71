"""Fill the generated blocks of README.md and docs: measured tables, and the loop's source.

python tools/readme.py            rewrites the pages
python tools/readme.py --check    exits with 1 if a page is stale
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import papers
from papers import ROOT, Cell, listed, orders

from paceline.loop import Batch, decode

_TABLES = sorted(path.stem for path in Path(__file__).parent.glob("*_tables.py"))


def main() -> int:
    """Entry point."""
    stale = 0
    for path, blocks in pages().items():
        page = ROOT / path
        old = page.read_text(encoding="utf-8")
        new = filled(page.name, old, blocks)
        stale |= old != new
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
    return int(stale and "--check" in sys.argv)


def filled(page: str, text: str, blocks: dict[str, str]) -> str:
    """The text with every generated block replaced."""
    for name, content in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no block {name!r}")
        text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def quoted_loop() -> str:
    """The source of a round and of the loop around it, without docstrings."""
    docstring = re.compile(r'^ +""".*?"""\n', re.DOTALL | re.MULTILINE)
    step, whole = (docstring.sub("", inspect.getsource(each), 1) for each in (Batch.step, decode))
    return f"```python\nclass Batch:\n{step}\n\n{whole.strip()}\n```"


def pages() -> dict[str, dict[str, str]]:
    """The generated blocks of every page, as pages.toml orders them."""
    known: dict[str, Callable[..., Any]] = {"quoted_loop": quoted_loop}
    for module in (papers, *map(import_module, _TABLES)):
        known |= {name: each for name, each in vars(module).items() if callable(each)}

    def called(order: str) -> Any:
        function, *words = shlex.split(order)
        return known[function](*words)

    def cell(order: str) -> Cell:
        found: Cell = order if "{" in order else called(order) if " " in order else known[order]
        return found

    def made(order: str | dict[str, Any]) -> str:
        if isinstance(order, str):
            return str(called(order))
        columns = order["columns"]
        columns = orders()["columns"][columns] if isinstance(columns, str) else columns
        cells = {heading: cell(each) for heading, each in columns.items()}
        table = listed(called(order["rows"]), cells, order.get("left", 1))
        return f"{called(order['above'])}\n\n{table}" if "above" in order else table

    return {
        page: {name: made(order) for name, order in blocks.items()}
        for page, blocks in orders().items()
        if page.endswith(".md")
    }


if __name__ == "__main__":
    sys.exit(main())
