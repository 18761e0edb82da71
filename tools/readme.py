"""Fill the generated blocks of README.md and docs: measured tables, and the loop's source.

python tools/readme.py            rewrites the pages
python tools/readme.py --check    exits with 1 if a page is stale
"""

from __future__ import annotations

import inspect
import re
import sys

from bench_tables import BENCH, PAPER_ANPD, PAPER_LLMA, README
from chimera_tables import CHIMERA
from ouroboros_tables import OUROBOROS
from papers import ROOT, Blocks
from ppd_tables import PPD
from study_tables import BATCHES, OUROBOROS_COSTS, PLANNING, SERVE, SPEED
from trained_tables import TRAINING

from paceline.loop import Batch, decode


def main() -> int:
    """Entry point."""
    stale = 0
    for path, blocks in PAGES.items():
        page = ROOT / path
        old = page.read_text(encoding="utf-8")
        new = filled(page.name, old, {name: make() for name, make in blocks.items()})
        stale |= old != new
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
    return int(stale and "--check" in sys.argv)


def filled(page: str, text: str, blocks: dict[str, str]) -> str:
    """The text with every generated block replaced."""
    for name, content in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no block {name!r}")
        block = f"{begin}\n{content}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def quoted_loop() -> str:
    """The source of a round and of the loop around it, without docstrings."""
    docstring = re.compile(r'^ +""".*?"""\n', re.DOTALL | re.MULTILINE)
    step, whole = (
        docstring.sub("", inspect.getsource(each), count=1) for each in (Batch.step, decode)
    )
    return f"```python\nclass Batch:\n{step}\n\n{whole.strip()}\n```"


PAGES: dict[str, Blocks] = {
    "README.md": {**README, "loop": quoted_loop},
    "docs/bench.md": BENCH,
    "docs/paper-anpd.md": PAPER_ANPD,
    "docs/paper-llma.md": PAPER_LLMA,
    "docs/paper-ppd.md": PPD,
    "docs/paper-chimera.md": CHIMERA,
    "docs/paper-ouroboros.md": OUROBOROS | OUROBOROS_COSTS,
    "docs/batches.md": BATCHES,
    "docs/serve.md": SERVE,
    "docs/training.md": TRAINING,
    "docs/planning.md": PLANNING,
    "docs/speed.md": SPEED,
}


if __name__ == "__main__":
    sys.exit(main())
