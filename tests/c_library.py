"""The C library, and tests that want it, or want to do without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from paceline.kernels.native.calls import unavailable

__all__ = ["needs_library", "without_library"]

needs_library = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "there")


@contextmanager
def without_library(module: ModuleType) -> Iterator[None]:
    """`module`, which asks for `unavailable`, hears that there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "unavailable", lambda: "was not built")
        yield
