"""What is kept of a model between calls of `generate`, with drafters that keep learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from transformers import PreTrainedModel

from paceline.drafters import Host
from paceline.errors import ModelError
from paceline.models.fingerprint import form_of, loaded_fingerprint
from paceline.opening.draft_models import DraftModels
from paceline.planning.cost_curve import CostCurve
from paceline.planning.curve_store import known_curve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter
from paceline.shared_batch import Turns
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.hidden_states import Watcher
from paceline.targets.late_model import LateModel

_measured: WeakKeyDictionary[PreTrainedModel, dict[object, CostCurve]] = WeakKeyDictionary()
"""What passes cost, by a model's form: a program may make a new `Pace` for every call, and nothing
is stored for a model without files."""


class KnownModel:
    """One model in one form, see `form_of`; every call has its own target. Does not keep the model
    alive unless something that drafters have opened for it does.

    target: of the first call. measure: whether to measure pass costs, and those of draft models, if
    no curve is stored.

    host: makes the host for the drafters of one call, from its target. drafts: opens draft models.
    turns: for calls, which share the planner, draft models and what was learned. A call from inside
    another one's turn, as by a processor, is part of that turn.
    """

    def __init__(self, model: PreTrainedModel, target: CausalLMTarget, measure: bool) -> None:
        self.model, self.form = ref(model), form_of(model)
        fingerprint, curves = loaded_fingerprint(model), _measured.setdefault(model, {})
        form = model.config._attn_implementation, self.form
        curve = curves.get(form) or known_curve(target, fingerprint, measure)
        if curve is not None:
            curves[form] = curve
        self.planner = TreePlanner(curve)
        self.drafts = DraftModels(
            LateModel(target.late_model.facts, partial(_alive, self.model)),
            fingerprint,
            device=model.device,
            dtype=model.dtype,
            measure=measure,
        )
        self.host = partial(
            Host,
            fingerprint=fingerprint,
            curve=curve,
            open=self.drafts,
            shared={},
            learned={},
            worth={},
            copies=False,  # the process is another's, and may make a new `Pace` for every call
            costs=self.planner.costs,
        )
        self.turns = Turns()
        self._idle: list[Drafter] = []

    def fits(self, model: PreTrainedModel) -> bool:
        """Whether it is the same model, in the same form, and so are its draft models."""
        return self.model() is model and self.form == form_of(model) and self.drafts.unchanged

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
