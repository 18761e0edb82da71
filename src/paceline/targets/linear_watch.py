"""What happens to linear layers in a trial pass: which share an input, and whose weights are read by
other code than their own forward.

A trial pass finds this, not their names, so it works for any architecture: layers that receive the
very same tensor share it. Some routers look at the type of a layer's weight, or multiply by it
themselves. Such a layer must keep its weight, so it cannot be replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class LinearsSeen:
    """What was seen of linear layers.

    read: those whose weight something else reads. shared: groups of others that receive the same
    tensor, each in call order; known once the pass is over. A layer that is called more than once
    is in no group.
    """

    read: set[nn.Module] = field(default_factory=set)
    shared: list[list[nn.Module]] = field(default_factory=list)


@contextmanager
def watching(layers: Sequence[nn.Module]) -> Iterator[LinearsSeen]:
    """Watch linear layers while the body runs their model."""
    seen, running = LinearsSeen(), set[nn.Module]()
    calls: list[tuple[nn.Module, torch.Tensor]] = []

    def weight(layer: nn.Module) -> torch.Tensor | None:
        if layer not in running:
            seen.read.add(layer)
        return layer._parameters["weight"]

    def begin(layer: nn.Module, inputs: Any) -> None:
        running.add(layer)
        calls.append((layer, inputs[0]))

    def end(layer: nn.Module, *_: Any) -> None:
        running.discard(layer)

    with ExitStack() as undo:
        for layer in layers:
            undo.callback(layer.register_forward_pre_hook(begin).remove)
            undo.callback(layer.register_forward_hook(end).remove)
        own = [layer for layer in layers if "weight" in layer._parameters]  # not in blocks
        watched = {
            kind: type(kind.__name__, (kind,), {"weight": property(weight)})
            for kind in set(map(type, own))
        }
        for layer in own:
            undo.callback(setattr, layer, "__class__", type(layer))
            layer.__class__ = watched[type(layer)]
        yield seen
    seen.shared = _sharing(calls, seen.read)


def _sharing(
    calls: Sequence[tuple[nn.Module, torch.Tensor]], read: Collection[nn.Module]
) -> list[list[nn.Module]]:
    counts = Counter(layer for layer, _ in calls)
    groups: dict[int, list[nn.Module]] = {}
    # `calls` keeps every input alive, so ids are unique.
    for layer, rows in calls:
        if counts[layer] == 1 and layer not in read:
            groups.setdefault(id(rows), []).append(layer)
    return [group for group in groups.values() if len(group) > 1]
