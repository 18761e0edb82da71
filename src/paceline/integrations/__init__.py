"""paceline inside other software: transformers' `generate`."""

from paceline.integrations.accelerated import Accelerated, accelerate
from paceline.integrations.transformers import Pace

__all__ = ["Accelerated", "Pace", "accelerate"]
