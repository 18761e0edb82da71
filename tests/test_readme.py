"""The README says what the source and the result files say."""

from __future__ import annotations

import re
from pathlib import Path

from tests.forked import Forked

ROOT = Path(__file__).parent.parent


def test_generated_blocks_are_fresh() -> None:
    assert Forked([ROOT / "tools/readme.py", "--check"]).wait() == 0, "run: python tools/readme.py"


def test_the_loop_fits_on_one_screen() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    loop = readme.partition("<!-- begin loop -->")[2].partition("<!-- end loop -->")[0]
    assert "def step" in loop
    assert len(loop.strip().splitlines()) <= 60


def test_the_two_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
