"""What is kept about a model between calls of `generate`."""

from __future__ import annotations

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
from paceline.targets.late_model import LateModel

__all__ = ["KnownModel"]


@dataclass
class KnownModel:
    """One model on one device; every call has its own target.

    Does not keep the model alive unless drafters that work for one model only are made for it.
    """

    model: ReferenceType[PreTrainedModel]
    device: torch.device
    fingerprint: str
    curve: CostCurve | None
    planner: TreePlanner
    measure: bool = False
    drafts: DraftModels | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    learned: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: PreTrainedModel, target: Target, measure: bool) -> KnownModel:
        """target: runs `model`. measure: whether to measure pass costs, and those of
        draft models, if no curve is stored."""
        fingerprint = loaded_fingerprint(model)
        curve = known_curve(target, fingerprint, measure)
        place = torch.device(model.device)
        return cls(ref(model), place, fingerprint, curve, TreePlanner(curve), measure)

    def fits(self, model: PreTrainedModel) -> bool:
        """Whether it is the same model, on the same device."""
        place: object = model.device
        return self.model() is model and self.device == place

    def host(self, model: PreTrainedModel, target: Target) -> Host:
        """The host for the drafters of one call."""
        if self.drafts is None:
            self.drafts = DraftModels(
                LateModel.opened(model),
                self.fingerprint,
                device=self.device,
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
