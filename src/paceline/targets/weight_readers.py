"""Which linear layers' weights are read by other code than their own forward.

Some routers look at the type of a layer's weight, or multiply by it themselves. Such a layer must
keep its weight, so it cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def noting_readers(layers: Sequence[nn.Module]) -> Iterator[set[nn.Module]]:
    """Collect, while the body runs their model, the layers whose weight something else reads."""
    found: set[nn.Module] = set()
    running: set[nn.Module] = set()

    def weight(layer: nn.Module) -> torch.Tensor | None:
        if layer not in running:
            found.add(layer)
        return layer._parameters["weight"]

    def begin(layer: nn.Module, _: Any) -> None:
        running.add(layer)

    def end(layer: nn.Module, *_: Any) -> None:
        running.discard(layer)

    kinds = {layer: type(layer) for layer in layers}
    watched = {
        kind: type(kind.__name__, (kind,), {"weight": property(weight)})
        for kind in set(kinds.values())
    }
    hooks = []
    for layer, kind in kinds.items():
        hooks += [layer.register_forward_pre_hook(begin), layer.register_forward_hook(end)]
        layer.__class__ = watched[kind]
    try:
        yield found
    finally:
        for layer, kind in kinds.items():
            layer.__class__ = kind
        for hook in hooks:
            hook.remove()
