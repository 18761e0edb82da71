"""The README says what the source and the result files say."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

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


def test_python_on_the_pages_names_what_there_is() -> None:
    found = 0
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for block in re.findall(
            r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        ):
            for node in ast.walk(ast.parse(block)):
                for name in _named(node):
                    if name.partition(".")[0] == "paceline":
                        found += 1
                        resolve_name(name)
    assert found > 10


def _named(node: ast.AST) -> list[str]:
    """What an import or a dotted expression names."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{each.name}" for each in node.names]
    names = list[str]()
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [".".join([node.id, *names])] if isinstance(node, ast.Name) and names else []


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
