"""The default method and model."""

from __future__ import annotations

__all__ = ["DEFAULT_METHOD", "DEFAULT_MODEL"]

DEFAULT_METHOD = "auto"
DEFAULT_MODEL = "smollm2-135m"
