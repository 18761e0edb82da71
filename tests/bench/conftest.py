"""What the tests of the measuring room share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import paceline.bench.trial
from paceline.drafters import make_drafter
from paceline.protocols import Drafter

NameMethods = Callable[[Mapping[str, Callable[[], Drafter]]], None]


@pytest.fixture
def name_methods(monkeypatch: pytest.MonkeyPatch) -> NameMethods:
    """Make comparisons know drafters by names of the test's own."""

    def register(makers: Mapping[str, Callable[[], Drafter]]) -> None:
        monkeypatch.setattr(
            paceline.bench.trial,
            "make_drafter",
            lambda name, host: makers[name]() if name in makers else make_drafter(name, host),
        )

    return register
