"""EAGLE: one block on features and tokens, trained on several steps of its own drafting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from paceline.errors import ModelError, UsageError
from paceline.training.method import Base, PartsInputs, TrainedMethod
from paceline.training.settings import WHAT, SoftLoss, TrainerSettings, option

if TYPE_CHECKING:
    import torch

    from paceline.drafters.eagle_model import EagleModel
    from paceline.drafters.head_configs import EagleConfig
    from paceline.drafters.trained_heads import EagleParts
    from paceline.training.batches import Batch
    from paceline.training.scorer import Scorer

__all__ = ["Eagle", "EagleSettings"]

Features = Literal["last", "three"]
"""last: the model's last hidden state (EAGLE 1 and 2). three: the outputs of a low, a middle and a
high layer (EAGLE-3)."""

Block = Literal["random", "last-layer"]

_NORMS = {"row_norm": "input_layernorm", "inner_norm": "post_attention_layernorm"}


@dataclass(frozen=True)
class EagleSettings(TrainerSettings):
    """What is trained, see `EagleConfig`, and how.

    Raises UsageError for a value out of range.
    """

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
        self._check_range(("state_weight", "intermediate"), 0, None)
        if self.state_weight and self.features != "last":
            raise UsageError(
                "state_weight compares outputs with last states: leave it at 0, or leave features "
                "at last"
            )


class Eagle(TrainedMethod[EagleSettings]):
    """Each step reads the output of the one before, and sees what it will see when drafting."""

    module: EagleModel

    name = "eagle"
    summary = "Train EAGLE's draft model: one block that continues from the model's own features."
    Settings = EagleSettings

    def __init__(self, base: Base, settings: EagleSettings) -> None:
        import torch

        from paceline.drafters.eagle_model import EagleModel
        from paceline.training.methods.last_layer import (
            copy_last_layer,
            gains_of,
            last_layer_has_biases,
            sized_like,
        )

        self.settings = settings
        layers = base.model.config.get_text_config().num_hidden_layers
        copied = settings.block == "last-layer"
        config = sized_like(self._config(layers), base.model.config, settings.intermediate)
        config = replace(config, biases=copied and last_layer_has_biases(base))
        self.module = EagleModel(config, base.head, base.embed, base.token_ids)
        if copied:
            copy_last_layer(self.module, base, _NORMS, "EAGLE")
            with torch.no_grad():
                self.module.last_norm.copy_(gains_of(base.final_norm))

    def _config(self, layers: int) -> EagleConfig:
        from paceline.drafters.head_configs import EagleConfig

        settings = self.settings
        taps = self.taps(settings, layers)
        try:
            return EagleConfig(taps, settings.heads, settings.vocabulary)
        except ModelError as error:
            raise UsageError(str(error)) from error

    @classmethod
    def taps(cls, settings: EagleSettings, layers: int) -> tuple[int, ...]:
        """See `TrainedMethod.taps`: layers 2, `layers` // 2 and `layers` - 3, as in the official
        code, within the layers there are."""
        if settings.features == "last":
            return ()
        return tuple(sorted({min(2, layers), max(1, layers // 2), max(1, layers - 3)}))

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Take all steps after all places, along the text."""
        from paceline.drafters.eagle_model import Stretches

        points, valid = batch.points()
        features = batch.states[:, :, :-1] if self.settings.features == "three" else batch.last
        texts = Stretches(
            batch.tokens,
            features.flatten(2).float(),
            batch.position,
            points,
            batch.sees(points),
        )
        for step, outputs in enumerate(self.module(texts, self.settings.heads)):
            ends = self.module.ends(outputs)
            scorer.add(step, ends, points, valid)
            if self.settings.state_weight:
                scorer.penalty(self._distance(ends, batch, points, valid, step))

    def _distance(
        self,
        ends: torch.Tensor,
        batch: Batch,
        points: torch.Tensor,
        valid: torch.Tensor,
        step: int,
    ) -> torch.Tensor:
        """The weighted smooth L1 distance of what the head reads from the target's own states."""
        from torch.nn import functional as F

        last, there = batch.last, valid & batch.has(points, step + 1)
        if not there.any():  # short answers end before this step's state
            return ends.new_zeros(())
        at = (points + step + 1).clamp(max=last.shape[1] - 1)
        wanted = last.gather(1, at[..., None].expand_as(ends))
        scale = last[batch.text >= 0].square().mean().sqrt()
        distance = F.smooth_l1_loss(ends[there] / scale, wanted[there] / scale)
        return self.settings.state_weight / self.settings.heads * distance

    def parts(self, tensors: Mapping[str, torch.Tensor], common: PartsInputs) -> EagleParts:
        """See `EagleParts`."""
        from paceline.drafters.trained_heads import EagleParts

        ids = {} if common.token_ids is None else {"token_ids": common.token_ids}
        return EagleParts(
            self.module.config, common.base, {**tensors, **ids}, common.table, common.record
        )

    @classmethod
    def finished(cls) -> type[EagleParts]:
        """See `TrainedMethod`."""
        from paceline.drafters.trained_heads import EagleParts

        return EagleParts
