"""PPD: embeddings after a text, with which the target itself guesses tokens ahead."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from paceline.drafters.prompt_tokens import PromptTokens
from paceline.errors import UsageError
from paceline.planning.acceptance import AcceptanceTable
from paceline.targets.trials import reads_embeddings
from paceline.training.batches import Batch
from paceline.training.method import Base, Finished, Record, Tensors, TrainedMethod
from paceline.training.methods.prompt_model import PromptModel
from paceline.training.methods.settings import PpdSettings
from paceline.training.scorer import Scorer


class Ppd(TrainedMethod[PpdSettings]):
    """Every window is read once, without gradients. Then prompt tokens follow many of its places
    at once, and only their rows are differentiated.

    Like Medusa's heads, they know nothing of the tokens in between, so they learn only where these
    are the target's own.
    """

    module: PromptModel

    Parts = PromptTokens

    def __init__(self, base: Base, settings: PpdSettings) -> None:
        super().__init__(base, settings)
        self.module = PromptModel(base, settings.config())

    @classmethod
    def check(
        cls, settings: PpdSettings, model: PreTrainedModel, first: Finished | None = None
    ) -> None:
        if not reads_embeddings(model):
            raise UsageError(
                "the model's layers look tokens up, too, so it cannot read prompt tokens: train "
                "another method"
            )
        layers = model.config.get_text_config().num_hidden_layers
        if settings.exits > layers:
            raise UsageError(f"the model has {layers} layers: exits must be at most {layers}")

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
        return int(self._points(batch)[1].sum())

    def _points(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw some places of every window, the same for the same batch."""
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
        return PromptTokens(self.module.config, self.base.about, tensors, table, record)
