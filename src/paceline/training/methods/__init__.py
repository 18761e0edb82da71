"""The trained methods: a row for each, from which its command and its run follow."""

from __future__ import annotations

from typing import Any

from paceline.training.method import TrainedMethod
from paceline.training.methods.chimera import Chimera
from paceline.training.methods.draft import Draft
from paceline.training.methods.eagle import Eagle
from paceline.training.methods.medusa import Medusa
from paceline.training.methods.ppd import Ppd

__all__ = ["TRAINED"]

TRAINED: dict[str, type[TrainedMethod[Any]]] = {
    kind.name: kind for kind in (Ppd, Medusa, Chimera, Eagle, Draft)
}
