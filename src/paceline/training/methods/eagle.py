"""EAGLE: one block on features and tokens, trained on several steps of its own drafting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from paceline.errors import UsageError
from paceline.trained_configs import EagleConfig
from paceline.training.method import Base, TrainedMethod
from paceline.training.settings import WHAT, Block, HeadSettings, SoftLoss, option

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.drafters.eagle_model import EagleModel
    from paceline.training.batches import Batch
    from paceline.training.scorer import Scorer

Features = Literal["last", "three"]
"""last: the model's last hidden state (EAGLE 1 and 2). three: the outputs of a low, a middle and a
high layer (EAGLE-3)."""


@dataclass(frozen=True)
class EagleSettings(HeadSettings):
    """What is trained, see `EagleConfig`, and how, see `TrainerSettings`."""

    heads: int = option(3, "Drafting steps to learn, one after the other.", WHAT)
    features: Features = option(
        "last", "last (the last state, EAGLE 1 and 2) or three (layers, EAGLE 3).", WHAT
    )
    block: Block = option(
        "last-layer", "How the block starts: random, or last-layer (the model's).", WHAT
    )
    intermediate: int = option(
        0, "Width of the block's feed-forward; 0: as in the model's layers.", WHAT
    )
    loss: SoftLoss = option("blend", "kl, blend (kl and total variation) or labels.")
    state_weight: float = option(
        0.0, "Loss weight of the distance from the model's next state (EAGLE 1)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("state_weight", "intermediate"), 0)
        if self.state_weight and self.features != "last":
            raise UsageError(
                "state_weight compares outputs with last states: leave it at 0, or leave features "
                "at last"
            )

    def config(self) -> EagleConfig:
        """The configuration, before it is fitted to a model."""
        return self.values_for(EagleConfig, steps=self.heads, intermediate=EagleConfig.intermediate)

    def check(self, model: PreTrainedModel) -> None:
        """See `TrainerSettings`."""
        from paceline.training.methods.last_layer import check_last_layer, sized_like

        sized_like(self.config(), model.config, self.intermediate)
        if self.block == "last-layer":
            check_last_layer(model, "EAGLE")

    def taps(self, layers: int) -> tuple[int, ...]:
        """See `TrainerSettings`: layers 2, `layers` // 2 and `layers` - 3, as in the official code,
        within the layers there are."""
        if self.features == "last":
            return ()
        return tuple(sorted({min(2, layers), max(1, layers // 2), max(1, layers - 3)}))


class Eagle(TrainedMethod[EagleSettings]):
    """Each step reads the output of the one before, and sees what it will see when drafting."""

    module: EagleModel

    name = "eagle"
    summary = "Train EAGLE's draft model: one block that continues from the model's own features."
    Settings = EagleSettings
    Parts = "paceline.drafters.trained_heads:EagleParts"
    may_differ = TrainedMethod.may_differ | {"heads"}  # steps share all tensors

    def __init__(self, base: Base, settings: EagleSettings) -> None:
        import torch

        from paceline.drafters.eagle_model import EagleModel
        from paceline.training.methods import last_layer

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

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Take all steps after all places, along the text."""
        from torch.nn import functional as F

        from paceline.drafters.attention_rows import Stretches

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
