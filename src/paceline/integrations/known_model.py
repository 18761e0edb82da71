"""What is learned of a model from one call of `generate` to the next."""

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
from paceline.planning.planner import TreePlanner
from paceline.planning.sketch import known_curve
from paceline.targets.causal_lm import CausalLMTarget

__all__ = ["KnownModel"]


@dataclass
class KnownModel:
    """One model on one device, of which every call has a target of its own.

    It does not keep the model alive, unless drafters that work for one model only are made for it.
    """

    model: ReferenceType[PreTrainedModel]
    device: torch.device
    fingerprint: str
    curve: CostCurve | None
    planner: TreePlanner
    drafts: DraftModels | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    learned: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, target: CausalLMTarget, sketch: bool) -> KnownModel:
        """sketch: whether to measure what passes cost, where nobody has."""
        fingerprint = loaded_fingerprint(target.model)
        curve = known_curve(target, fingerprint, sketch)
        return cls(ref(target.model), target.device, fingerprint, curve, TreePlanner(curve))

    def fits(self, target: CausalLMTarget) -> bool:
        """Whether it is the same model in the same place."""
        return self.model() is target.model and self.device == target.device

    def host(self, target: CausalLMTarget) -> Host:
        """For the drafters of one call."""
        if self.drafts is None:
            self.drafts = DraftModels(
                target.model, self.fingerprint, device=self.device, dtype=target.model.dtype
            )
        return Host(
            target,
            self.fingerprint,
            self.curve,
            open=self.drafts,
            shared=self.shared,
            learned=self.learned,
        )
