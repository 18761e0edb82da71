"""The trained methods."""

from __future__ import annotations

from paceline.training.methods.settings import TRAINED

__all__ = ["TRAINED"]
