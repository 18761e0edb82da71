"""The trained methods: the settings of each, by its name."""

from __future__ import annotations

from paceline.training.methods.settings import (
    ChimeraSettings,
    DraftSettings,
    EagleSettings,
    MedusaSettings,
    PpdSettings,
)
from paceline.training.settings import TrainerSettings

__all__ = ["TRAINED"]

TRAINED: dict[str, type[TrainerSettings]] = {
    kind.name: kind
    for kind in (PpdSettings, MedusaSettings, ChimeraSettings, EagleSettings, DraftSettings)
}
