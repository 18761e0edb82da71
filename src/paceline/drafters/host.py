"""What a trained drafter attaches to, and how a drafter gets at another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from paceline.planning.adaptive_tree import Costs
from paceline.planning.cost_curve import CostCurve
from paceline.protocols import Target

__all__ = ["Host", "ModelChoice", "Opener"]


@dataclass(frozen=True)
class ModelChoice:
    """A model to be opened.

    model: its name, or the model itself where it is loaded already.
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
    open: hands out hosts on other models; None where no other can be had.
    clock: seconds.
    shared: what drafters have made for this host and others may use as well, by keys of their own;
    kept as long as the host.
    """

    target: Target
    fingerprint: str = ""
    curve: CostCurve | None = None
    tokens: int | None = None
    open: Opener | None = None
    clock: Callable[[], float] = perf_counter
    costs: Costs | None = None
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def share(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` made when this key was first asked for."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]


Opener = Callable[[ModelChoice], Host]
"""Makes a host whose target belongs to who asked, for as long as the host is kept; its weights may
be shared. Raises ModelError for a model that cannot draft, and says why."""
