"""Measure what a pass of any target costs on this machine, and what its memory allows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.models.memory import free_memory
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.protocols import Target
from paceline.records import Path
from paceline.tree import EMPTY, Tree

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
CONTEXTS = (128, 1024)
REPEATS = 7

PassTimes = dict[tuple[int, int], list[float]]
"""Seconds of passes by width and context."""

# How often to return to a context: each time may read up to all of it again.
_BLOCKS = 3

_BUFFER_BYTES = 1 << 29  # more than the processor's caches hold
_COLUMNS = 4096
_BANDWIDTH_REPEATS = 7


def measure_curve(
    target: Target,
    widths: Sequence[int] = WIDTHS,
    contexts: Sequence[int] = CONTEXTS,
    repeats: int = REPEATS,
    on_pass: Callable[[int], None] = lambda passes: None,
) -> CostCurve:
    """The median time of a pass at every width and context, over `repeats` passes each.

    widths: rows of a pass, root included; 1 is added, those beyond the context are left out.
    contexts: tokens in the cache before the root, cut to leave room for the widest pass.
    on_pass: called after each timed pass with how many there are in all, for progress bars.

    All widths take turns, in a new order each time, and so do contexts: whatever speeds up or slows
    down the machine affects all alike. Afterwards the target keeps nothing of closed texts.

    Raises UsageError for numbers below 1, and for a model without room for a second token.
    """
    return curve_of(time_passes(target, widths, contexts, repeats, on_pass))


def time_passes(
    target: Target,
    widths: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    on_pass: Callable[[int], None] = lambda passes: None,
) -> PassTimes:
    """Seconds of every pass behind the medians of `measure_curve`, by width and context."""
    fitting, lengths = _grid(target, widths, contexts, repeats)
    random = Random(0)  # noqa: S311 - the same passes for everyone
    text = _random_tokens(random, target, lengths[-1] + 1)
    seconds: PassTimes = {}
    for length, turns in _blocks(lengths, repeats):
        with _entered(target, text[: length + 1]) as slot:
            if (1, length) not in seconds:
                # The first pass of its kind allocates, chooses kernels, or captures a graph.
                for width in fitting:
                    _time_pass(target, slot, random, width)
            for _ in range(turns):
                for width in random.sample(fitting, len(fitting)):
                    taken = _time_pass(target, slot, random, width)
                    seconds.setdefault((width, length), []).append(taken)
                    on_pass(repeats * len(fitting) * len(lengths))
    target.forget()
    return seconds


def curve_of(times: PassTimes, typical: Callable[[Sequence[float]], float] = median) -> CostCurve:
    """The curve of the typical pass of each width and context."""
    by_context = sorted(times, key=lambda place: place[::-1])
    return CostCurve(tuple(CostPoint(*place, 1000 * typical(times[place])) for place in by_context))


def _grid(
    target: Target, widths: Sequence[int], contexts: Sequence[int], repeats: int
) -> tuple[list[int], list[int]]:
    """The widths and contexts to measure, ascending; every width fits at every context."""
    if not contexts or min(*widths, *contexts, repeats, 1) < 1:
        raise UsageError("widths, contexts and repeats of a cost curve must be at least 1")
    fitting = sorted({1, *widths})
    room = sys.maxsize if target.max_context is None else target.max_context
    if room < 2:
        raise UsageError(f"the model's context of {room} is too short to measure a pass")
    lengths = sorted({min(length, max(room - fitting[-1], 1)) for length in contexts})
    return [width for width in fitting if lengths[-1] + width <= room], lengths


def _blocks(lengths: Sequence[int], repeats: int) -> Iterator[tuple[int, int]]:
    """Contexts with the repeats to do there: up, down, up, so that neighbours share a cache."""
    count = min(_BLOCKS, repeats)
    for block in range(count):
        turns = repeats * (block + 1) // count - repeats * block // count
        for length in lengths if block % 2 == 0 else reversed(lengths):
            yield length, turns


@contextmanager
def _entered(target: Target, text: Sequence[int]) -> Iterator[int]:
    """A slot with all of `text` but its last token, the root, in the cache. One pass is played
    untimed, since the first pass of a slot also reads pending tokens."""
    slot = target.open(text[:-1])
    try:
        target.score({slot: EMPTY})
        target.commit({slot: Path((), (text[-1],))})
        yield slot
    finally:
        target.close(slot)


def _time_pass(target: Target, slot: int, random: Random, width: int) -> float:
    """Seconds of one pass. Nothing is committed, so the next one finds the same cache."""
    tree = Tree.chain(_random_tokens(random, target, width - 1))
    return _seconds(lambda: target.score({slot: tree})[slot])


def _seconds(act: Callable[[], torch.Tensor]) -> float:
    """Seconds until the device of the result has done all its work."""
    began = perf_counter()
    device = act().device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - began


def _random_tokens(random: Random, target: Target, count: int) -> list[int]:
    return [random.randrange(target.vocab_size) for _ in range(count)]


@dataclass(frozen=True)
class Floor:
    """The least time of a pass, which has to read all weights from memory.

    weight_bytes: how much has to be read.
    gb_per_s: read bandwidth of this machine, in 10^9 bytes per second.
    """

    weight_bytes: int
    gb_per_s: float

    @property
    def milliseconds(self) -> float:
        """The least time of a pass."""
        return self.weight_bytes / self.gb_per_s / 1e6

    def share(self, curve: CostCurve) -> float:
        """How close plain decoding comes: 1.0 is as fast as memory allows.

        More is possible if the model is small enough to stay in the caches.
        """
        return self.milliseconds / curve.cost(1)


def measure_floor(target: Target) -> Floor:
    """The floor of `target` on its device; see `measure_bandwidth`."""
    info = target.describe()
    return Floor(info.weight_bytes, measure_bandwidth(torch.device(info.device)))


def measure_bandwidth(device: torch.device) -> float:
    """Memory bandwidth in GB/s (10^9 bytes per second): the best of several attempts.

    On a CPU: reading half a gigabyte, or less if little memory is free, with torch's threads by the
    fastest of `_read_kernels`; a plain sum may reach only two thirds of the packed product. On a
    GPU: copying, which counts both bytes read and bytes written.
    """
    moved, kernels = _kernels(device)
    attempts = (kernel for kernel in kernels for _ in range(_BANDWIDTH_REPEATS))
    return max(moved / _seconds(kernel) / 1e9 for kernel in attempts)


def _kernels(device: torch.device) -> tuple[int, list[Callable[[], torch.Tensor]]]:
    """Bytes that each kernel moves, and the kernels."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        source = torch.ones(_buffer_bytes(free), dtype=torch.uint8, device=device)
        place = torch.empty_like(source)
        return source.nbytes + place.nbytes, [lambda: place.copy_(source)]
    rows = max(1, _buffer_bytes(free_memory()) // (4 * _COLUMNS))
    matrix = torch.ones(rows, _COLUMNS, device="cpu")
    return matrix.nbytes, list(_read_kernels(matrix))


def _read_kernels(matrix: torch.Tensor) -> Iterator[Callable[[], torch.Tensor]]:
    """Ways to read every entry of `matrix` [rows, columns] once."""
    flat, vector = matrix.flatten(), matrix.new_ones(matrix.shape[1])
    yield flat.sum
    yield flat.amax
    yield lambda: flat.dot(flat)
    yield lambda: matrix @ vector
    backend: Any = torch.backends.mkldnn
    operators: Any = torch.ops.mkldnn
    # Private to torch, so it may be missing.
    if backend.is_available() and hasattr(operators, "_reorder_linear_weight"):
        packed = operators._reorder_linear_weight(matrix, 4)
        four = matrix.new_ones(4, matrix.shape[1])
        yield lambda: operators._linear_pointwise(four, packed, None, "none", [], "")


def _buffer_bytes(spare: int | None) -> int:
    """At most a quarter of the free memory: some kernels make a copy."""
    return _BUFFER_BYTES if spare is None else max(1, min(_BUFFER_BYTES, spare // 4))
