"""paceline inside other software: transformers' `generate`."""

from paceline.integrations.transformers import Accelerated, Pace, accelerate

__all__ = ["Accelerated", "Pace", "accelerate"]
