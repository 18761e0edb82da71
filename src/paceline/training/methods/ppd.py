"""PPD: embeddings after a text, with which the target itself guesses tokens ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.trained_configs import PromptConfig, PromptHead, PromptMask
from paceline.training.method import Base, Record, Tensors, TrainedMethod
from paceline.training.settings import WHAT, SavedFloats, Schedule, TrainerSettings, option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from paceline.drafters.prompt_tokens import PromptTokens
    from paceline.planning.acceptance import AcceptanceTable
    from paceline.training.batches import Batch
    from paceline.training.methods.prompt_model import PromptModel
    from paceline.training.scorer import Scorer


@dataclass(frozen=True)
class PpdSettings(TrainerSettings):
    """What is trained, see `PromptConfig`, and how, see `TrainerSettings` (PPD, section 6.1.2)."""

    heads: int = option(3, "Prompt tokens: how many tokens ahead to guess.", WHAT)
    vocabulary: int = option(
        0, "Learn and measure among this many frequent tokens; drafts guess all. 0: all.", WHAT
    )
    epts: int = option(1, "Embeddings (EPTs) per prompt token.", WHAT)
    mask: PromptMask = option(
        "ensemble", "What EPTs see of one another: ensemble, decoder, encoder.", WHAT
    )
    learned_weights: bool = option(
        False, "Learn weights for the guesses of EPTs instead of averaging them.", WHAT
    )
    prefix_tokens: int = option(0, "Trained keys and values per layer.", WHAT)
    output_head: PromptHead = option(
        "shared", "shared (the model's), small (a block before it) or full (a copy).", WHAT
    )
    exits: int = option(1, "Number of last layers to average.", WHAT)
    save_dtype: SavedFloats = option(
        "float32", "Type of the saved embeddings: float16, bfloat16, float32.", WHAT
    )
    points: int = option(64, "Places of a window to learn from in a step.")
    learning_rate: float = option(1e-2, "Learning rate of AdamW after the warm-up.")
    head_rate: float = option(0.1, "Rate of an output head, relative to --learning-rate.")
    schedule: Schedule = option("cosine", "constant (then linear to 0) or cosine.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("points",), 1)
        if not self.head_rate > 0:
            raise UsageError(f"head_rate must be positive, got {self.head_rate}")

    def config(self) -> PromptConfig:
        """The configuration."""
        return self.values_for(PromptConfig, prompt_tokens=self.heads, head=self.output_head)

    def check(self, model: PreTrainedModel) -> None:
        """See `TrainerSettings`."""
        layers = model.config.get_text_config().num_hidden_layers
        if self.exits > layers:
            raise UsageError(f"the model has {layers} layers: exits must be at most {layers}")


class Ppd(TrainedMethod[PpdSettings]):
    """Every window is read once, without gradients. Then prompt tokens follow many of its places
    at once, and only their rows are differentiated.

    Like Medusa's heads, they know nothing of the tokens in between, so they learn only where these
    are the target's own.
    """

    module: PromptModel

    name = "ppd"
    summary = "Train prompt tokens for PPD: embeddings that let a model guess several tokens ahead."
    Settings = PpdSettings
    Parts = "paceline.drafters.prompt_tokens:PromptTokens"
    may_differ = TrainedMethod.may_differ | {"vocabulary", "output_head"}

    def __init__(self, base: Base, settings: PpdSettings) -> None:
        from paceline.training.methods.prompt_model import PromptModel

        super().__init__(base, settings)
        self.module = PromptModel(base, settings.config())

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Run all prompt tokens after some places."""
        points, valid = self._points(batch)
        ends = self.module(batch, points)
        own_head = self.module.head if self.settings.output_head == "full" else None
        for head in range(self.settings.heads):
            found = ends[:, :, head] if own_head is None else own_head(ends[:, :, head])
            there = valid & batch.on_policy(points, head + 1)
            scorer.add(head, found, points, there, as_logits=own_head is not None)

    def places(self, batch: Batch) -> int:
        """See `TrainedMethod.places`."""
        return int(self._points(batch)[1].sum())

    def _points(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw some places of every window, the same for the same batch."""
        import torch

        points, valid = batch.points()
        if points.shape[1] <= self.settings.points:
            return points, valid
        mark = int(batch.tokens.sum()) + int(batch.position.sum()) + self.settings.seed
        mark %= 2**64  # of torch's generator
        noise = torch.rand(points.shape, generator=torch.Generator().manual_seed(mark))
        order = (noise.to(points.device) + (~valid)).argsort(dim=1)[:, : self.settings.points]
        order = order.sort(dim=1).values
        return points.gather(1, order), valid.gather(1, order)

    def relative_rate(self, name: str) -> float:
        """Output heads learn at `head_rate`."""
        return self.settings.head_rate if name.startswith("head.") else 1.0

    def parts(self, tensors: Tensors, table: AcceptanceTable, record: Record) -> PromptTokens:
        """See `PromptTokens`."""
        from paceline.drafters.prompt_tokens import PromptTokens

        return PromptTokens(self.module.config, self.base.about, tensors, table, record)
