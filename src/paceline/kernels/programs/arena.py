"""Places for values that share as little memory as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.kernels.programs.steps import Kind, Op, Step, Value

__all__ = ["Places", "find_places"]

_GRAIN = 16  # numbers; 64 bytes


@dataclass
class Places:
    """Where each value begins, and the total width by kind; both in numbers per row."""

    begin: dict[Value, int] = field(default_factory=dict)
    width: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))


def find_places(steps: Sequence[Step], logits: Value) -> Places:
    """Assign places to the values of `steps`.

    logits: stored elsewhere.

    Between two products, all steps run on one row before the next row: memory is reused only from
    one such stretch to the next.
    """
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for stretch, step in _by_stretch(steps):
        if step.out is not None:
            first.setdefault(step.out, stretch)
        # A product's rows are rounded in the stretch before it.
        last.update(dict.fromkeys(step.reads(), stretch))
    found = Places()
    taken: dict[Kind, list[tuple[int, int, int]]] = {kind: [] for kind in Kind}
    for value, begin in first.items():  # in the order of steps
        if value is logits:
            continue
        end = max(last.get(value, begin), begin)
        size = -(-value.count // _GRAIN) * _GRAIN
        held = sorted(each for each in taken[value.kind] if each[2] >= begin)
        place = 0
        for at, after, _ in held:
            if at - place >= size:
                break
            place = max(place, after)
        taken[value.kind] = [*held, (place, place + size, end)]
        found.begin[value] = place
        found.width[value.kind] = max(found.width[value.kind], place + size)
    return found


def _by_stretch(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    """Steps with the number of the stretch that each belongs to."""
    stretch = 0
    for step in steps:
        alone = step.op in (Op.PRODUCT, Op.ATTEND, Op.SELECT)
        stretch += alone
        yield stretch, step
        stretch += alone
