"""Servers that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.serve.live import Live, live, tool_session


@pytest.fixture(scope="session")
def served() -> Iterator[Live]:
    """A toy that takes tools, with the default settings."""
    with live(tool_session(), max_body=200_000) as running:
        yield running
