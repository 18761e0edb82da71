"""Which steps torch runs together: products of the same rows with rotations of their outputs, and a
product with the sum that it is added to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from paceline.kernels.programs.steps import Function, Join, Op, Operand, Step, Value, readers_of

Readers = Mapping[Value | None, list[Step]]
"""The steps that read each value, in order."""


@dataclass(eq=False)
class Block:
    """Products of the same rows, their outputs side by side.

    products: the steps. turned: rotations of the first outputs, which run in place, as one.
    """

    products: list[Step] = field(default_factory=list)
    turned: list[Step] = field(default_factory=list)

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
class Merged:
    """Steps in the order to run them; those that run with another one are left out.

    blocks: by the first of their products. places: the blocks that values lie in, and where in a
    row they begin. added: products by the sums that they are added to in place.
    """

    steps: Sequence[Step]
    blocks: dict[Step, Block]
    places: dict[Value | None, tuple[Block, int]]
    added: dict[Step, Step]

    def adjoin(self, of: Sequence[Operand]) -> bool:
        """Whether the second of two operands lies right after the first in a block."""
        first, second = (self.places.get(each.value) if each.whole else None for each in of)
        return first is not None and second == (first[0], first[1] + of[0].period)


def merged(steps: Iterable[Step]) -> Merged:
    """Find what runs together."""
    steps = list(steps)
    blocks, readers = _blocks(steps), readers_of(steps)
    # The first if there are two: GIVEN only replaces rows.
    makers = {Operand.all_of(step.out): step for step in reversed(steps) if step.out is not None}
    places: dict[Value | None, tuple[Block, int]] = {}
    left_out = {step for block in blocks.values() for step in block.products[1:]}
    for block in blocks.values():
        block.turned = _rotations(block, readers)
        places.update({value: (block, begin) for value, begin, _ in block.parts()})
        left_out.update(block.turned)
    added: dict[Step, Step] = {}
    changed = set[Value | None]()  # in place, by sums
    for step in steps:
        product = _added(step, makers, readers, blocks)
        # It runs later than its place among the steps: its rows must still be what they were.
        if product is not None and product.of[0].value not in changed:
            added[step] = product
            changed.update(each.value for each in step.of if each.value is not product.out)
            blocks.pop(product)
            left_out.add(product)
    kept = [step for step in steps if step not in left_out]
    return Merged(kept, blocks, places, added)


def _blocks(steps: Sequence[Step]) -> dict[Step, Block]:
    by_rows: dict[Operand, Block] = {}
    for step in steps:
        if step.op == Op.PRODUCT and step.out is not None:
            by_rows.setdefault(step.of[0], Block()).products.append(step)
    return {block.products[0]: block for block in by_rows.values()}


def _rotations(block: Block, readers: Readers) -> list[Step]:
    """Rotations of the block's first outputs that turn alike; nobody else may read these."""
    found: list[Step] = []
    for product in block.products:
        reading = readers.get(product.out, [])
        if [each.op for each in reading] != [Op.ROTATE] or not reading[0].of[0].whole:
            break
        if found and not _alike(found[0], reading[0]):
            break
        found += reading
    return found


def _alike(one: Step, other: Step) -> bool:
    if one.order is None or other.order is None or one.of[1:] != other.of[1:]:
        return False
    return one.size == other.size and torch.equal(one.order, other.order)


def _added(
    step: Step, makers: Mapping[Operand, Step], readers: Readers, blocks: dict[Step, Block]
) -> Step | None:
    """The product that can be added in place to the other operand of a sum, which nobody reads
    later; None if there is none."""
    if step.op != Op.MAP or step.join != Join.PLUS or step.function != Function.SAME:
        return None
    for total, part in (step.of, step.of[::-1]):
        product, own = makers.get(part), makers.get(total)
        if product not in blocks or len(blocks[product].products) > 1 or own is None:
            continue
        fresh = own.op == Op.EMBED or (own.op == Op.MAP and own.join != Join.ALONE)
        if fresh and readers[part.value] == [step] and readers[total.value][-1] is step:
            return product
    return None
