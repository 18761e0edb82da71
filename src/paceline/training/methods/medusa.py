"""Medusa-1: residual blocks on the target's last state, one for each distance (arXiv 2401.10774)."""

from __future__ import annotations

from paceline.drafters.medusa_heads import MedusaHeads
from paceline.drafters.trained_heads import MedusaParts
from paceline.training.batches import Batch
from paceline.training.method import Base, TrainedMethod
from paceline.training.methods.settings import MedusaSettings
from paceline.training.scorer import Scorer


class Medusa(TrainedMethod[MedusaSettings]):
    """Heads that know nothing of the tokens after the state that they read.

    So a head learns what the target writes further on only where the tokens in between are the
    target's own: everywhere in its answers, and in texts it only reads where they agree with it.
    """

    module: MedusaHeads

    Parts = MedusaParts

    def __init__(self, base: Base, settings: MedusaSettings) -> None:
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
