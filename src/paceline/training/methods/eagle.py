"""EAGLE: one block on features and tokens, trained on several steps of its own drafting."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from paceline.drafters.attention_rows import Stretches
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.trained_heads import EagleParts
from paceline.training.batches import Batch
from paceline.training.method import Base, Finished, TrainedMethod
from paceline.training.methods import last_layer
from paceline.training.methods.settings import EagleSettings
from paceline.training.scorer import Scorer


class Eagle(TrainedMethod[EagleSettings]):
    """Each step reads the output of the one before, and sees what it will see when drafting."""

    module: EagleModel

    Parts = EagleParts

    def __init__(self, base: Base, settings: EagleSettings) -> None:
        super().__init__(base, settings)
        self.bits = settings.bits
        model, copied = base.model, settings.block == "last-layer"
        taps = settings.taps(model.config.get_text_config().num_hidden_layers)
        config = last_layer.sized_like(settings.config(), model.config, settings.intermediate)
        biases = copied and last_layer.has_biases(model)
        config = replace(config, layers=taps, biases=biases)
        self.module = EagleModel(config, base.head, base.embed, base.token_ids)
        if copied:
            last_layer.copy_last_layer(self.module, model, "row_norm", "EAGLE")
            with torch.no_grad():
                self.module.last_norm.copy_(last_layer.gains_of(last_layer.final_norm_of(model)))

    @classmethod
    def check(
        cls, settings: EagleSettings, model: PreTrainedModel, first: Finished | None = None
    ) -> None:
        last_layer.check_block(settings, model, first, "EAGLE")

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Take all steps after all places, along the text."""
        points, valid = batch.points()
        features = batch.states[:, :, :-1] if self.settings.features == "three" else batch.last
        features, sees = features.flatten(2).float(), batch.sees(points)
        texts = Stretches(batch.tokens, features, batch.position, batch.start, points, sees)
        for step, outputs in enumerate(self.module(texts, self.settings.heads)):
            ends = self.module.ends(outputs)
            scorer.add(step, ends, points, valid)
            there = valid & batch.has(points, step + 1)
            # Short answers end before this step's state.
            if self.settings.state_weight and there.any():
                last = batch.last
                wanted = batch.after(last, points, step + 1)
                scale = last[batch.text >= 0].square().mean().sqrt()
                distance = F.smooth_l1_loss(ends[there] / scale, wanted[there] / scale)
                scorer.penalty(self.settings.state_weight / self.settings.heads * distance)
