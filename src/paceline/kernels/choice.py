"""Choose the fastest kind of weights for what need not be exact: drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.block_layers import (
    BlockLinear,
    FloatLinear,
    Int4Linear,
    Int8Linear,
    make_packed,
)
from paceline.kernels.linear import (
    FastLinear,
    Maker,
    PackedLinear,
    PlainLinear,
    UnpackableError,
    make_linear,
)
from paceline.kernels.native.calls import unavailable

Kinds = Mapping[str, Maker]
Size = tuple[torch.Size, torch.dtype]

FASTEST, NATIVE = "fastest", "native"

WORTH_CHOOSING = 8 << 20
"""Bytes; smaller weights stay in the processor's caches and cost next to no time."""

_KINDS: Kinds = {NATIVE: PlainLinear, "packed": make_packed, "int8": Int8Linear}
_REPEATS = 5
_EVICTING = 64 << 20  # bytes; more than most processors cache


def plain_pays(weights: Sequence[torch.Tensor]) -> tuple[bool, str]:
    """Whether one row takes less time through layers with these weights than four rows through
    packed ones; and a report of both times, for `PackedAndPlainLinear`, "" if they cannot be
    packed."""
    plain, packed = (1e3 * _seconds(weights, kind) for kind in (PlainLinear, PackedLinear))
    if isinf(packed):
        return False, ""
    verdict = "kept" if plain < packed else "dropped"
    times = f"one plain row {plain:.1f} ms, four packed rows {packed:.1f} ms"
    return plain < packed, f"{verdict}: {times}"


@torch.no_grad()
def quicken(module: nn.Module, rows: int, kind: str = FASTEST) -> None:
    """Replace a module's linear layers by other kinds; the module cannot be trained afterwards.

    kind: native, packed or int8 for all layers; or `FASTEST`: on the CPU, each layer gets the kind
    that is fastest for at most `rows` rows.

    Raises UnpackableError for a kind that is not available.
    """
    if kind != FASTEST and kind not in _KINDS:
        raise UnpackableError(f"they must be one of {FASTEST}, {', '.join(_KINDS)}")
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | PlainLinear)
    }
    weights = {name: layer.weight.detach() for name, layer in layers.items()}
    for name, chosen in _choose(weights, rows, kind).items():
        made = make_linear(_KINDS[chosen], weights[name], layers[name].bias)
        module.set_submodule(name, _Padded(made) if made.min_rows > 1 else made)


def program_kind(module: nn.Module, kind: str) -> type[BlockLinear] | None:
    """The kind of layer for programs of a module; None if torch's operators are to run it.

    kind: see `quicken`.
    """
    weights: list[torch.Tensor] = [part for part in module.parameters() if part.dim() > 1]
    weights += [each.weight for each in module.modules() if isinstance(each, PlainLinear)]
    if kind == "int8" and not unavailable():
        return Int8Linear
    if kind != FASTEST or unavailable() or any(each.device.type != "cpu" for each in weights):
        return None
    # The target's pass has evicted the drafter's weights: half the bytes take half the time.
    return FloatLinear if sum(each.nbytes for each in weights) < WORTH_CHOOSING else Int4Linear


def _choose(weights: Mapping[str, torch.Tensor], rows: int, kind: str) -> dict[str, str]:
    """Name of a layer -> its kind; layers that stay as they are are left out."""
    if kind != FASTEST:
        return {} if kind == NATIVE else dict.fromkeys(weights, kind)
    little = sum(weight.nbytes for weight in weights.values()) < WORTH_CHOOSING
    if little or any(weight.device.type != "cpu" for weight in weights.values()):
        return {}
    times = {name: _times([*weights.values()], each, rows) for name, each in _KINDS.items()}
    return {
        name: min(times, key=lambda each: times[each][_size(weight)])
        for name, weight in weights.items()
    }


class _Padded(nn.Module):
    """Pads rows to a layer's `min_rows`, as the target does for its own layers."""

    def __init__(self, layer: FastLinear) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        flat = rows.reshape(-1, rows.shape[-1])
        missing = max(0, self._layer.min_rows - len(flat))
        found: torch.Tensor = self._layer(F.pad(flat, (0, 0, 0, missing)))[: len(flat)]
        return found.view(*rows.shape[:-1], -1)


def _size(weight: torch.Tensor) -> Size:
    return weight.shape, weight.dtype


def _seconds(weights: Sequence[torch.Tensor], kind: Maker) -> float:
    """How long one row takes through layers with these weights."""
    times = _times(weights, kind, 1)
    return sum(times[_size(weight)] for weight in weights)


def _times(weights: Sequence[torch.Tensor], kind: Maker, rows: int) -> dict[Size, float]:
    """The least seconds that a layer of each size takes for `rows` rows; infinite if this kind is
    not available. One layer of each size is timed, with cold caches: before each draft, the
    target's pass has evicted the drafter's weights."""
    found = dict.fromkeys(map(_size, weights), float("inf"))
    one = {_size(weight): weight for weight in weights}
    try:
        layers = {size: make_linear(kind, weight, None) for size, weight in one.items()}
    except UnpackableError:
        return found
    inputs = {
        size: torch.ones(max(rows, layer.min_rows), layer.in_features, dtype=size[1], device="cpu")
        for size, layer in layers.items()
    }
    other = torch.zeros(_EVICTING, dtype=torch.uint8, device="cpu")
    for _ in range(_REPEATS):
        other += 1
        for size, layer in layers.items():
            began = perf_counter()
            layer(inputs[size])
            found[size] = min(found[size], perf_counter() - began)
    return found
