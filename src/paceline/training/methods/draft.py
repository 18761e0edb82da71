"""A draft model: some layers of the target, trained to predict what the whole model does."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from paceline.errors import UsageError
from paceline.kernels.token_table import head_reads_table
from paceline.models.draft_folder import DraftParts, DraftRecord
from paceline.models.draft_model import head_tensors, name_of_head, own_tensors
from paceline.models.low_rank import DOWN, UP, check_linear, with_low_rank
from paceline.planning.acceptance import AcceptanceTable
from paceline.training.batches import Batch, masks_of
from paceline.training.cutting import check_layers, check_text_only, cut, mixed_precision
from paceline.training.method import Base, Finished, Record, Tensors, TrainedMethod
from paceline.training.methods.settings import DraftSettings
from paceline.training.scorer import Scorer


class Draft(TrainedMethod[DraftSettings]):
    """A draft model reads the tokens it guesses after, so it learns only one guess per place: a
    chain of guesses is right as long as each is right after the text."""

    module: PreTrainedModel

    Parts = DraftParts

    def __init__(self, base: Base, settings: DraftSettings) -> None:
        super().__init__(base, settings)
        self._layers = settings.kept(base.model.config.get_text_config().num_hidden_layers)
        self.module = cut(base.model, self._layers, base.token_ids)
        fixed: set[str] = set()
        if settings.rank:
            fixed = with_low_rank(self.module, settings.rank)
        own = own_tensors(self.module, base.model).keys() - fixed
        for name, part in self.module.named_parameters():
            part.requires_grad_(name in own)

    @classmethod
    def check(
        cls, settings: DraftSettings, model: PreTrainedModel, first: Finished | None = None
    ) -> None:
        """See `TrainedMethod`; updates of weights need the same layers below them."""
        check_text_only(model)
        kept = settings.kept(model.config.num_hidden_layers)
        check_layers(kept, model.config.num_hidden_layers)
        if settings.rank:
            check_linear(model)
        if isinstance(first, DraftParts):
            about = first.about
            if (about.layers, about.rank) != (kept, settings.rank):
                layers = ",".join(map(str, about.layers))
                raise UsageError(
                    f"the draft model to start from has other layers: train with --layers {layers} "
                    f"--rank {about.rank}"
                )

    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Guess once after every place; without gradients, guess a whole chain."""
        draft, base = self.module, self.base.model
        masks = masks_of(draft, batch.sees_back, base.dtype)
        with mixed_precision(base):
            found = draft.base_model(
                batch.tokens, attention_mask=masks, position_ids=batch.position, use_cache=False
            )
        states, (points, valid) = found.last_hidden_state.float(), batch.points()
        chain = 1 if torch.is_grad_enabled() else self.settings.heads
        for head in range(chain):
            picked = batch.after(states, points, head + 1)
            scorer.add(head, picked, points, valid & batch.has(points, head + 1))

    def parts(self, tensors: Tensors, table: AcceptanceTable, record: Record) -> DraftParts:
        base, own = self.base, self.settings
        stored, ids = dict(tensors), base.token_ids
        dtype = next(iter(tensors.values())).dtype
        config = copy.deepcopy(self.module.config)
        config.dtype = dtype
        config.architectures = [type(base.model).__name__]
        config.tie_word_embeddings = head_reads_table(base.model)
        if own.standalone:
            whole = self.module.state_dict()
            if config.tie_word_embeddings:
                whole.pop(f"{name_of_head(base.model)}.weight", None)
            stored = _floats_in(dtype, whole)
        elif ids is not None:
            stored |= _floats_in(torch.half, head_tensors(base.model, ids, own.rank > 0))
        count = sum(tensor.numel() for tensor in tensors.values())
        about = DraftRecord(
            base=base.about.fingerprint,
            name=base.about.name,
            layers=self._layers,
            vocabulary=0 if ids is None else len(ids),
            shared=not own.standalone,
            rank=own.rank,
            parameters=count,
        )
        sizes = {
            "own": count,
            "read_by_a_pass": self._read_by_a_pass(),
            "of_the_base": base.model.num_parameters(),
        }
        size = sum(each.nbytes for each in stored.values())
        record = {**record, "parameters": sizes, "bytes": size}
        opened = (base.model, base.tokenizer) if own.standalone else None
        return DraftParts(about, stored, record, config, opened)

    def _read_by_a_pass(self) -> int:
        """Parameters that a pass reads when updates have been added to their weights."""
        layers = sum(
            each.numel()
            for name, each in own_tensors(self.module, self.base.model).items()
            if not name.endswith((DOWN, UP)) and not name.startswith("draft.")
        )
        return layers + self.base.head[0].numel()


def _floats_in(dtype: torch.dtype, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {
        name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()
    }
