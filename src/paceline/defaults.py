"""The default method and model."""

from __future__ import annotations

DEFAULT_METHOD = "auto"
DEFAULT_MODEL = "smollm2-135m"
