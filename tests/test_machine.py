"""How a result was produced."""

from __future__ import annotations

import sys

import pytest

from paceline.machine import describe_run


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/usr/bin/paceline", "paceline tune --json 'a file'"),
        ("/usr/lib/paceline/__main__.py", "paceline tune --json 'a file'"),
        ("benchmarks/products.py", "products.py tune --json 'a file'"),
    ],
)
def test_the_command_is_one_that_can_be_repeated(
    program: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "tune", "--json", "a file"])
    assert describe_run()["command"] == shown
