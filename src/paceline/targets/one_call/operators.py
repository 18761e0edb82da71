"""The torch operators that compute no numbers, which programs support beside `Arithmetic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.targets.one_call.recording import UnfitError

__all__ = ["CONSTANTS", "MOVES"]

_ATEN = torch.ops.aten


def _same(codes: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return codes


def _view(codes: torch.Tensor, shape: Any) -> torch.Tensor:
    # A view keeps the order of elements; codes may lie in memory in any order.
    return codes.reshape(shape)


def _converted(codes: torch.Tensor, **options: Any) -> torch.Tensor:
    if options.get("dtype") not in (None, torch.float32):
        raise UnfitError(f"it converts to {options['dtype']}")
    return codes


MOVES: dict[Any, Callable[..., Any]] = {
    _ATEN.view.default: _view,
    _ATEN._unsafe_view.default: _view,
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.clone.default: _same,
    _ATEN.lift_fresh.default: _same,
    _ATEN._to_copy.default: _converted,
    **{
        each: each
        for each in (
            _ATEN.unsqueeze.default,
            _ATEN.squeeze.dim,
            _ATEN.transpose.int,
            _ATEN.permute.default,
            _ATEN.t.default,
            _ATEN.expand.default,
            _ATEN.slice.Tensor,
            _ATEN.select.int,
            _ATEN.split.Tensor,
            _ATEN.split_with_sizes.default,
            _ATEN.unbind.int,
            _ATEN.cat.default,
            _ATEN.stack.default,
            _ATEN.neg.default,
        )
    },
}
"""Operators that only move elements or flip signs -> the same on codes."""

CONSTANTS = {_ATEN.new_full, _ATEN.new_zeros, _ATEN.full_like, _ATEN.zeros_like}
"""Operators whose result does not depend on their input's numbers."""
