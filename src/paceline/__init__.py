"""Lossless acceleration of large language models: draft, verify, commit.

    import paceline

    session = paceline.load("smollm2-135m")
    print(session.chat("What is a paceline?").text)

Public names are imported on first use, so that `import paceline` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import load
    from paceline.errors import ModelError, PacelineError, StoreError, UsageError
    from paceline.integrations import Accelerated, Pace, accelerate
    from paceline.options import Options
    from paceline.references import ReferenceStore
    from paceline.session import Chunk, Completion, Session, Stream

__version__ = "0.1.0"

_NAMES = {
    "api": ("load",),
    "errors": ("ModelError", "PacelineError", "StoreError", "UsageError"),
    "integrations": ("Accelerated", "Pace", "accelerate"),
    "options": ("Options",),
    "references": ("ReferenceStore",),
    "session": ("Chunk", "Completion", "Session", "Stream"),
}

__all__ = [
    "Accelerated",
    "Chunk",
    "Completion",
    "ModelError",
    "Options",
    "Pace",
    "PacelineError",
    "ReferenceStore",
    "Session",
    "StoreError",
    "Stream",
    "UsageError",
    "__version__",
    "accelerate",
    "load",
]


def __getattr__(name: str) -> Any:
    for home, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
