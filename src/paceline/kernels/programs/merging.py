"""Which steps torch runs together: products of the same rows with rotations of their outputs, and a
product with the sum that it is added to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.kernels.programs.steps import Function, Join, Op, Operand, Step, Value

__all__ = ["Block", "Merged", "Place", "merged"]


@dataclass(eq=False)
class Block:
    """Products of the same rows, their outputs side by side [rows, count].

    products: the steps. turned: rotations of the first outputs, which run in place, as one.
    """

    products: list[Step] = field(default_factory=list)
    turned: list[Step] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Numbers per row."""
        return sum(step.count for step in self.products)

    def parts(self) -> list[tuple[Value, int, int]]:
        """The values that it makes, and where they begin and end in a row."""
        turned = {step.of[0].value: step.out for step in self.turned}
        found, begin = [], 0
        for step in self.products:
            value, end = turned.get(step.out, step.out), begin + step.count
            if value is not None:
                found.append((value, begin, end))
            begin = end
        return found


@dataclass(frozen=True)
class Place:
    """Where a value lies: from `at` on in the rows of a block."""

    block: Block
    at: int


@dataclass(frozen=True)
class Merged:
    """Steps in the order to run them; those that run with another one are left out.

    blocks: by the first of their products. places: of the values in blocks. added: products by the
    sums that they are added to in place.
    """

    steps: Sequence[Step]
    blocks: dict[Step, Block]
    places: dict[Value, Place]
    added: dict[Step, Step]

    def adjoin(self, of: Sequence[Operand]) -> bool:
        """Whether the second of two operands lies right after the first in a block."""
        first, second = (
            self.places.get(each.value) if each.whole and each.value else None for each in of
        )
        if first is None or second is None or first.block is not second.block:
            return False
        return first.at + of[0].period == second.at


def merged(steps: Iterable[Step]) -> Merged:
    """Find what runs together."""
    steps = list(steps)
    blocks, places = _products(steps)
    readers = _readers(steps)
    left_out = {step for block in blocks.values() for step in block.products[1:]}
    for block in blocks.values():
        block.turned = _rotations(block, readers)
        places.update({value: Place(block, begin) for value, begin, _ in block.parts()})
        left_out.update(block.turned)
    added: dict[Step, Step] = {}
    changed: set[Value | None] = set()  # in place, by sums
    for step in steps:
        product = _added(step, readers, blocks)
        # It runs later than its place among the steps: its rows must still be what they were.
        if product is not None and product.of[0].value not in changed:
            added[step] = product
            changed.update(each.value for each in step.of if each.value is not product.out)
            blocks.pop(product)
            left_out.add(product)
    kept = [step for step in steps if step not in left_out]
    return Merged(kept, blocks, places, added)


def _products(steps: Sequence[Step]) -> tuple[dict[Step, Block], dict[Value, Place]]:
    by_rows: dict[Operand, Block] = {}
    places: dict[Value, Place] = {}
    for step in steps:
        if step.op != Op.PRODUCT or step.out is None:
            continue
        block = by_rows.setdefault(step.of[0], Block())
        places[step.out] = Place(block, block.count)
        block.products.append(step)
    return {block.products[0]: block for block in by_rows.values()}, places


def _readers(steps: Iterable[Step]) -> dict[Value, list[Step]]:
    found: dict[Value, list[Step]] = {}
    for step in steps:
        for value in {*step.reads()}:
            found.setdefault(value, []).append(step)
    return found


def _rotations(block: Block, readers: dict[Value, list[Step]]) -> list[Step]:
    """Rotations of the block's first outputs that turn alike; nobody else may read these."""
    found: list[Step] = []
    for product in block.products:
        reading = readers.get(product.out, []) if product.out else []
        step = reading[0] if len(reading) == 1 else None
        if step is None or step.op != Op.ROTATE or not step.of[0].whole:
            break
        if found and not _alike(found[0], step):
            break
        found.append(step)
    return found


def _alike(one: Step, other: Step) -> bool:
    if one.order is None or other.order is None or one.of[1:] != other.of[1:]:
        return False
    return one.size == other.size and torch.equal(one.order, other.order)


def _added(step: Step, readers: dict[Value, list[Step]], blocks: dict[Step, Block]) -> Step | None:
    """The product that can be added in place to the other operand of a sum, which nobody reads
    later; None if there is none."""
    if step.op != Op.MAP or step.join != Join.PLUS or step.function != Function.SAME:
        return None
    for total, part in (step.of, step.of[::-1]):
        if not (total.whole and part.whole and total.value and part.value):
            continue
        product, own = part.value.source, total.value.source
        if product not in blocks or len(blocks[product].products) > 1 or own is None:
            continue
        fresh = own.op == Op.EMBED or (own.op == Op.MAP and own.join != Join.ALONE)
        if readers[part.value] == [step] and readers[total.value][-1] is step and fresh:
            return product
    return None
