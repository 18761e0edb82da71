"""Chimera: n-gram encoder, full context encoder and residual heads (section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.trained_configs import Bottom, ChimeraConfig, Form
from paceline.training.method import Base, Finished, Record, Tensors, TrainedMethod
from paceline.training.settings import WHAT, Block, HeadSettings, option

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from paceline.drafters.chimera_model import ChimeraModel
    from paceline.planning.acceptance import AcceptanceTable
    from paceline.training.batches import Batch
    from paceline.training.scorer import Scorer

_COMMON_NGRAMS = 4096


@dataclass(frozen=True)
class ChimeraSettings(HeadSettings):
    """What is trained, see `ChimeraConfig`, and how, see `TrainerSettings`."""

    heads: int = option(3, "How many tokens ahead to guess.", WHAT)
    order: int = option(3, "Tokens that the n-gram encoder sees.", WHAT)
    form: Form = option("compact", "compact (ends in the model's own head) or full.", WHAT)
    layers: int = option(0, "Residual blocks of a head.", WHAT)
    rank: int = option(0, "Rank of the matrices of n-gram block and heads; 0: full.", WHAT)
    residual: bool = option(True, "Heads also see the model's last state.", WHAT)
    bottom: Bottom = option(
        "ngram", "ngram; for ablations: transformer frozen, transformer finetune.", WHAT
    )
    block: Block = option(
        "random", "How the context encoder starts: random, or last-layer (the model's).", WHAT
    )
    final_norm: bool = option(
        False, "Normalise the context encoder's output, as the model does.", WHAT
    )
    intermediate: int = option(
        0, "Width of the context encoder's feed-forward; 0: as in the model's layers.", WHAT
    )
    decay: float = option(1.0, "Loss weight of a head relative to the one before.")
    state_weight: float = option(1.0, "Loss weight of the distance from the model's states.")
    own_guesses: bool = option(False, "Learn after its own guesses instead of the text.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("state_weight", "intermediate"), 0)
        if self.own_guesses and self.bottom != "ngram":
            raise UsageError(
                "a transformer at the bottom can learn only after the tokens of texts: leave out "
                "own guesses"
            )

    @property
    def rounds(self) -> bool:
        """See `HeadSettings`."""
        return self.form == "compact" and not self.layers and self.bottom == "ngram"

    def config(self) -> ChimeraConfig:
        """The configuration, before it is sized for a model."""
        return self.values_for(ChimeraConfig, intermediate=ChimeraConfig.intermediate)

    def check(self, model: PreTrainedModel) -> None:
        """See `TrainerSettings`."""
        from paceline.training.methods.last_layer import check_last_layer, sized_like

        sized_like(self.config(), model.config, self.intermediate)
        if self.block == "last-layer":
            check_last_layer(model, "Chimera")


class Chimera(TrainedMethod[ChimeraSettings]):
    """Heads see the tokens between the last state and their guess, so they learn from any text."""

    module: ChimeraModel

    name = "chimera"
    summary = "Train Chimera's draft model: n-gram encoder, context encoder and residual heads."
    Settings = ChimeraSettings
    Parts = "paceline.drafters.trained_heads:ChimeraParts"

    def __init__(self, base: Base, settings: ChimeraSettings) -> None:
        from paceline.drafters.chimera_model import ChimeraModel
        from paceline.training.methods import last_layer
        from paceline.training.scorer import rounded_head

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

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Draft after all places, along the text."""
        from paceline.drafters.attention_rows import Stretches
        from paceline.drafters.chimera_model import Drafted

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
        from paceline.training.frequent import frequent_ngrams

        texts = [text.tokens for text in self.base.train]
        common_ngrams = frequent_ngrams(texts, self.settings.order, _COMMON_NGRAMS)
        return super().parts({**tensors, "common_ngrams": common_ngrams}, table, record)
