"""What a trained drafter attaches to, and how a drafter gets at another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from paceline.datastore import Datastore
from paceline.planning.cost_curve import CostCurve, Costs
from paceline.protocols import Target

__all__ = ["COPIES", "SELF", "Host", "ModelChoice", "Opener"]

SELF = "self"
"""As the name of a draft model: a copy of the model that it drafts for, on weights of few bits."""

COPIES = ("int4", "int8")
"""Weights that such a copy may have, the usual ones first."""


@dataclass(frozen=True)
class ModelChoice:
    """A model to be opened.

    model: its name, `SELF`, or the model itself where it is loaded already.
    device, dtype, weights: as in `paceline.load`; "" is as for the model it drafts for.
    """

    model: Any
    device: str = ""
    dtype: str = ""
    weights: str = ""


@dataclass(frozen=True)
class Host:
    """The model that a drafter works for.

    fingerprint: of the model's weights, see `paceline.models.fingerprint`; "" where unknown.
    curve: what passes cost on this machine; None where nobody has measured it. costs: what they
    turn out to cost in this session, by the tokens in the cache; None where nobody looks.
    tokens: ids below this stand for text, and for the same text as with the model it was opened
    for; the vocabulary may be padded beyond. None for all.
    takes_over: the target takes over what that of the model which it drafts for has read, so it is
    better asked when that has been read.
    open: hands out hosts on other models; None where no other can be had.
    datastore: that the session looks into and adds to; None for none, or the model's own.
    vocabulary: says which tokenizer the model has, see `paceline.models.vocabulary`; None where it
    is not known.
    clock: seconds.
    shared: constants that drafters have made for this host and others may use as well, e.g. opened
    modules, by keys of their own; kept as long as the host.
    learned: what drafters have learned from texts and go on with in the next ones, by keys of their
    own; each bounds itself. Drafters of one method share a host, those of another take a fresh one.
    worth: what asking within a drafter has turned out to be worth, by keys of its own; kept as long
    as the planner, which knows the same of drafters.
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
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    learned: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    worth: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def share(self, key: Any, make: Callable[[], Any]) -> Any:
        """The constant that `make` made when this key was first asked for."""
        return _kept(self.shared, key, make)

    def learn(self, key: Any, make: Callable[[], Any]) -> Any:
        """What has been learned under this key; `make` makes it as long as nothing is known."""
        return _kept(self.learned, key, make)

    def fresh(self) -> Host:
        """The same host, to which nothing is known of any text."""
        return replace(self, learned={})


def _kept(store: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key not in store:
        store[key] = make()
    return store[key]


Opener = Callable[[ModelChoice], Host]
"""Makes a host on another model, to which nothing is known of any text. Its target may be that of
other hosts on the model. Raises ModelError for a model that cannot draft, and says why."""
