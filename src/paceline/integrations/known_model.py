"""What is kept about a model between calls of `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from transformers import PreTrainedModel

from paceline.draft_models import DraftModels
from paceline.drafters import Host
from paceline.models.fingerprint import loaded_fingerprint
from paceline.planning.cost_curve import CostCurve
from paceline.planning.first_curve import known_curve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Target
from paceline.shared_batch import Turns
from paceline.targets.late_model import LateModel

__all__ = ["KnownModel", "form_of"]


@dataclass
class KnownModel:
    """One model in one form; every call has its own target.

    form: see `form_of`.

    Does not keep the model alive unless drafters that work for one model only are made for it.
    """

    model: ReferenceType[PreTrainedModel]
    form: tuple[object, ...]
    fingerprint: str
    curve: CostCurve | None
    planner: TreePlanner
    measure: bool = False
    drafts: DraftModels | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    learned: dict[Any, Any] = field(default_factory=dict)
    _turns: Turns = field(default_factory=Turns)

    @classmethod
    def of(cls, model: PreTrainedModel, target: Target, measure: bool) -> KnownModel:
        """target: runs `model`. measure: whether to measure pass costs, and those of
        draft models, if no curve is stored."""
        fingerprint = loaded_fingerprint(model)
        curve = known_curve(target, fingerprint, measure)
        return cls(ref(model), form_of(model), fingerprint, curve, TreePlanner(curve), measure)

    def fits(self, model: PreTrainedModel) -> bool:
        """Whether it is the same model, in the same form."""
        return self.model() is model and self.form == form_of(model)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For one thread at a time: calls share the planner, draft models and what was learned.
        A call from inside another one's turn, as by a processor, is part of that turn."""
        if self._turns.mine:
            yield
            return
        with self._turns:
            yield

    def host(self, model: PreTrainedModel, target: Target) -> Host:
        """The host for the drafters of one call."""
        if self.drafts is None:
            self.drafts = DraftModels(
                LateModel.opened(model),
                self.fingerprint,
                device=torch.device(model.device),
                dtype=model.dtype,
                measure=self.measure,
            )
        return Host(
            target,
            self.fingerprint,
            self.curve,
            open=self.drafts,
            shared=self.shared,
            learned=self.learned,
            costs=self.planner.costs,
        )


def form_of(model: PreTrainedModel) -> tuple[object, ...]:
    """What may change about a model between calls: device, dtype and size of the vocabulary."""
    return model.device, model.dtype, model.config.get_text_config().vocab_size
