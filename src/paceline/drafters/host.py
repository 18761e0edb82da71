"""What a trained drafter attaches to."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.planning.cost_curve import CostCurve
from paceline.protocols import Target

__all__ = ["Host"]


@dataclass(frozen=True)
class Host:
    """The model that a drafter works for.

    fingerprint: of the model's weights, see `paceline.models.fingerprint`; "" where unknown.
    curve: what passes cost on this machine; None where nobody has measured it.
    """

    target: Target
    fingerprint: str = ""
    curve: CostCurve | None = None
