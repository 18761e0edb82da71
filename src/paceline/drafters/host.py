"""What a trained drafter attaches to, and how a drafter gets another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeVar

from paceline.datastore import Datastore
from paceline.planning.cost_curve import CostCurve, Costs
from paceline.protocols import Target

T = TypeVar("T")

SELF = "self"
"""As the name of a draft model: a copy of the model it drafts for, with low-bit weights."""

COPIES = ("int4", "int8")
"""Weights that such a copy may have, the default first."""


@dataclass(frozen=True)
class ModelChoice:
    """A model to open.

    model: its name, `SELF`, or the model itself if it is loaded already.
    device, dtype, weights: as in `paceline.load`; "" uses the device and dtype of the model it
    drafts for, and chooses weights.
    """

    model: Any
    device: str = ""
    dtype: str = ""
    weights: str = ""


@dataclass(frozen=True)
class Host:
    """The model that a drafter works for.

    fingerprint: of the model's weights, see `paceline.models.fingerprint`; "" if unknown.
    curve: pass costs on this machine; None if not measured. costs: actual pass costs in this
    session, by the tokens in the cache; None if not observed.
    tokens: ids below this stand for text, the same text as in the model it was opened for; the
    vocabulary may be padded beyond. None for all.
    takes_over: the target takes over what that of the model it drafts for has read, so it is better
    asked after that.
    open: makes hosts for other models; None if there are no others. copies: whether a copy of the
    model may be made unasked: that takes time and memory.
    datastore: that the session searches and adds to; None for none. finds_datastore: whether the
    model's own may be searched then.
    vocabulary: identifies the model's tokenizer, see `paceline.models.vocabulary`; None if unknown.
    clock: seconds.
    shared: constants that drafters have made for this host and others may use, for example opened
    modules, by keys of their own; kept as long as the host.
    learned: what drafters have learned from texts and continue with in the next ones, by keys of
    their own; each limits its own size. Drafters of one method share a host, those of another take
    a fresh one.
    worth: what asking within a drafter has proved to be worth, by keys of its own; kept as long as
    the planner, which knows the same about drafters.
    """

    target: Target
    fingerprint: str = ""
    curve: CostCurve | None = None
    tokens: int | None = None
    takes_over: bool = False
    open: Opener | None = None
    clock: Callable[[], float] = perf_counter
    costs: Costs | None = None
    vocabulary: Callable[[], str] | None = None
    datastore: Datastore | None = None
    finds_datastore: bool = True
    copies: bool = True
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    learned: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    worth: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def share(self, key: Any, make: Callable[[], T]) -> T:
        """The constant that `make` made when this key was first used."""
        return _kept(self.shared, key, make)

    def learn(self, key: Any, make: Callable[[], T]) -> T:
        """What was learned under this key; `make` makes it if nothing is known yet."""
        return _kept(self.learned, key, make)

    def fresh(self) -> Host:
        """The same host, knowing nothing of any text."""
        return replace(self, learned={})


def _kept(store: dict[Any, Any], key: Any, make: Callable[[], T]) -> T:
    if key not in store:
        store[key] = make()
    found: T = store[key]
    return found


Opener = Callable[[ModelChoice], Host]
"""Makes a host for another model, knowing nothing of any text. Other hosts of that model may share
its target. Raises ModelError for a model that cannot draft, with the reason."""
