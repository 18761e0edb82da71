"""What is kept of a model between calls of `generate`, with drafters that keep learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from transformers import PreTrainedModel

from paceline.drafters import Host
from paceline.errors import ModelError
from paceline.models.fingerprint import loaded_fingerprint
from paceline.opening.draft_models import DraftModels
from paceline.planning.cost_curve import CostCurve
from paceline.planning.first_curve import known_curve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Target
from paceline.shared_batch import Turns
from paceline.targets.hidden_states import Watcher
from paceline.targets.late_model import LateModel, ModelFacts

_measured: WeakKeyDictionary[PreTrainedModel, dict[object, CostCurve]] = WeakKeyDictionary()
"""What passes cost, by a model's form: a program may make a new `Pace` for every call, and nothing
is stored for a model without files."""


class KnownModel:
    """One model in one form, see `form_of`; every call has its own target. Does not keep the model
    alive unless something that drafters have opened for it does.

    target: runs the model. measure: whether to measure pass costs, and those of draft models, if no
    curve is stored.

    turns: for calls, which share the planner, draft models and what was learned. A call from inside
    another one's turn, as by a processor, is part of that turn.
    """

    def __init__(self, model: PreTrainedModel, target: Target, measure: bool) -> None:
        self.model, self.form = ref(model), form_of(model)
        self.fingerprint = loaded_fingerprint(model)
        form, known = (
            (model.config._attn_implementation, self.form),
            _measured.setdefault(model, {}),
        )
        if form not in known and (curve := known_curve(target, self.fingerprint, measure)):
            known[form] = curve
        self.curve = known.get(form)
        self.planner = TreePlanner(self.curve)
        self._measure = measure
        self.shared: dict[Any, Any] = {}
        self.learned: dict[Any, Any] = {}
        self.worth: dict[Any, Any] = {}
        self.turns = Turns()
        self._idle: list[Drafter] = []

    def fits(self, model: PreTrainedModel) -> bool:
        """Whether it is the same model, in the same form."""
        return self.model() is model and self.form == form_of(model)

    @cached_property
    def drafts(self) -> DraftModels:
        """Opens draft models for this one."""
        model = _alive(self.model)
        return DraftModels(
            LateModel(ModelFacts.of(model), partial(_alive, self.model)),
            self.fingerprint,
            device=torch.device(model.device),
            dtype=model.dtype,
            measure=self._measure,
        )

    def host(self, target: Target) -> Host:
        """The host for the drafters of one call."""
        return Host(
            target,
            self.fingerprint,
            self.curve,
            open=self.drafts,
            shared=self.shared,
            learned=self.learned,
            worth=self.worth,
            copies=False,  # the process is another's, and may make a new `Pace` for every call
            costs=self.planner.costs,
        )

    @contextmanager
    def lend(self, make: Callable[[], Drafter]) -> Iterator[Drafter]:
        """A drafter for one text, within the context; the one last used if idle, so that it keeps
        learning, else a new one. It is lent again unless that ends with an error, whose cause it
        may be, or with an interruption, which may leave its text open."""
        try:
            # Looking first whether there is one would leave time for another thread to take it.
            drafter = self._idle.pop()
        except IndexError:
            drafter = make()
        yield drafter
        self._idle.append(drafter)


def form_of(model: PreTrainedModel) -> tuple[object, ...]:
    """What may change about a model between calls: device, dtype and size of the vocabulary."""
    return model.device, model.dtype, model.config.get_text_config().vocab_size


def hooks_of(model: PreTrainedModel) -> tuple[object, ...]:
    """The hooks of a model's modules, and replacements of their `forward`. Equal only if nothing
    was added, removed or replaced in between."""
    found: list[object] = []
    for name, module in model.named_modules():
        own = vars(module)
        before, after = tuple(own["_forward_pre_hooks"]), tuple(own["_forward_hooks"].items())
        # These keys are never used again, unlike ids. Ours watch one pass, perhaps another thread's.
        keys = tuple(key for key, hook in after if not isinstance(hook, Watcher))
        if before or keys or "forward" in own:
            found.append((name, before, keys, _mark(own.get("forward"))))
    return tuple(found)


def _mark(function: Any) -> object:
    """Tells a function from all others, without keeping it."""
    try:
        mark = ref(function)
        hash(mark)
    except TypeError:  # as for None
        return id(function)
    return mark


def _alive(model: ReferenceType[PreTrainedModel]) -> PreTrainedModel:
    """The model, which lives as long as a call."""
    found = model()
    if found is None:
        raise ModelError("the model no longer exists: keep it while texts are generated")
    return found
