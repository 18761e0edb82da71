"""Medusa-1: residual blocks on the target's last state, one for each distance (arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.trained_configs import Form, MedusaConfig
from paceline.training.method import Base, TrainedMethod
from paceline.training.settings import WHAT, HeadSettings, option

if TYPE_CHECKING:
    from paceline.drafters.medusa_heads import MedusaHeads
    from paceline.training.batches import Batch
    from paceline.training.scorer import Scorer


@dataclass(frozen=True)
class MedusaSettings(HeadSettings):
    """What is trained, see `MedusaConfig`, and how, see `TrainerSettings`."""

    layers: int = option(1, "Residual blocks of a head.", WHAT)
    form: Form = option("compact", "compact (ends in the model's own head) or full.", WHAT)
    learning_rate: float = option(1e-3, "Learning rate of AdamW after the warm-up.")

    @property
    def rounds(self) -> bool:
        """See `HeadSettings`."""
        return self.form == "compact" and self.layers == 1

    def config(self) -> MedusaConfig:
        """The configuration."""
        return self.values_for(MedusaConfig)


class Medusa(TrainedMethod[MedusaSettings]):
    """Heads that know nothing of the tokens after the state that they read.

    So a head learns what the target writes further on only where the tokens in between are the
    target's own: everywhere in its answers, and in texts it only reads where they agree with it.
    """

    module: MedusaHeads

    name = "medusa"
    summary = (
        "Train Medusa-1 heads: each guesses a token further ahead from the model's last state."
    )
    Settings = MedusaSettings
    Parts = "paceline.drafters.trained_heads:MedusaParts"

    def __init__(self, base: Base, settings: MedusaSettings) -> None:
        from paceline.drafters.medusa_heads import MedusaHeads

        super().__init__(base, settings)
        self.bits = settings.bits
        self.module = MedusaHeads(settings.config(), base.head, base.token_ids)

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Run all heads on the states at all places."""
        points, valid = batch.points()
        found = self.module.ends(batch.after(batch.last, points, 0).flatten(0, 1))
        found = found.view(len(found), *points.shape, -1)
        full = self.settings.form == "full"
        for head, guesses in enumerate(found):
            scorer.add(head, guesses, points, valid & batch.on_policy(points, head + 1), full)
