"""Chimera: n-gram encoder, full context encoder and residual heads (section 4.1)."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from paceline.drafters.attention_rows import Stretches
from paceline.drafters.chimera_model import ChimeraModel, Drafted
from paceline.drafters.trained_heads import ChimeraParts
from paceline.planning.acceptance import AcceptanceTable
from paceline.training.batches import Batch
from paceline.training.frequent import frequent_ngrams
from paceline.training.method import Base, Finished, Record, Tensors, TrainedMethod
from paceline.training.methods import last_layer
from paceline.training.methods.settings import ChimeraSettings
from paceline.training.scorer import Scorer, rounded_head

_COMMON_NGRAMS = 4096


class Chimera(TrainedMethod[ChimeraSettings]):
    """Heads see the tokens between the last state and their guess, so they learn from any text."""

    module: ChimeraModel

    Parts = ChimeraParts

    def __init__(self, base: Base, settings: ChimeraSettings) -> None:
        super().__init__(base, settings)
        self.bits = settings.bits
        self.own_guesses = settings.own_guesses if settings.bottom == "ngram" else None
        copied = settings.block == "last-layer"
        config = last_layer.sized_like(settings.config(), base.model.config, settings.intermediate)
        config = replace(config, biases=copied and last_layer.has_biases(base.model))
        bottom = None
        if settings.bottom != "ngram":
            trained = settings.bottom == "transformer finetune"
            bottom = last_layer.TransformerBottom(base.model, trained)
        head = rounded_head(base.head, self.bits)
        self.module = ChimeraModel(config, head, base.embed, base.token_ids, bottom)
        if copied:
            last_layer.begin_as_last_layer(self.module.encoder, base.model)

    @classmethod
    def check(
        cls, settings: ChimeraSettings, model: PreTrainedModel, first: Finished | None = None
    ) -> None:
        last_layer.check_block(settings, model, first, "Chimera")

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Draft after all places, along the text."""
        points, valid = batch.points()
        last, sees = batch.last, batch.sees(points)
        texts = Stretches(batch.tokens, last, batch.position, batch.start, points, sees)
        found: Drafted = self.module(texts, bool(self.own_guesses))
        scale = last[batch.text >= 0].square().mean()
        for head, (ends, states) in enumerate(zip(found.ends, found.states)):
            scorer.add(head, ends, points, valid, self.settings.form == "full")
            there = valid & batch.has(points, head + 1)
            # Short answers end before this head's state.
            if self.settings.state_weight and there.any():
                wanted = batch.after(last, points, head + 1)
                distance = (states - wanted)[there].square().mean() / scale
                scorer.penalty(self.settings.state_weight / self.settings.heads * distance)

    def may_round(self, name: str, part: nn.Parameter) -> bool:
        """See `TrainedMethod`; the heads' matrices have other names."""
        return name in ("narrow", "joint") or super().may_round(name, part)

    def parts(self, tensors: Tensors, table: AcceptanceTable, record: Record) -> Finished:
        """See `TrainedMethod`; with the training texts' common n-grams."""
        texts = [text.tokens for text in self.base.train]
        common_ngrams = frequent_ngrams(texts, self.settings.order, _COMMON_NGRAMS)
        return super().parts({**tensors, "common_ngrams": common_ngrams}, table, record)
