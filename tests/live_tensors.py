"""Counts what piles up."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch

__all__ = ["Tensors", "live_tensors"]


class Tensors(NamedTuple):
    """Number of tensors, and bytes of their storage, each counted once; that of packed ones is
    not visible."""

    number: int
    memory: int


def live_tensors() -> Tensors:
    """Count the tensors that are still referenced, after a garbage collection."""
    gc.collect()
    # By type: `isinstance` makes some lazy objects import what they stand for.
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    # Packed weights and the like do not expose their storage.
    storages = [one.untyped_storage() for one in found if one.layout is torch.strided]
    memory = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return Tensors(len(found), sum(memory.values()))
