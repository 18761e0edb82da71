"""Steps as torch's operators, on any device: few and large, for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from paceline.kernels.programs.merging import Block, Merged, merged
from paceline.kernels.programs.steps import Lowered, Op, Step, Value
from paceline.kernels.programs.torch_pass import Operands, Read, Run, TorchPass
from paceline.kernels.programs.torch_steps import STEPS, rotation
from paceline.kernels.stand_in import stacked


class TorchProgram:
    """Runs lowered steps on a model's own linear layers, whose weights it may move in memory.

    heads, size: of keys and values in the pool. operands: what the steps read, with the tables of
    positions.

    Raises ValueError, naming the reason, for steps that torch has no operators for.
    """

    def __init__(self, lowered: Lowered, device: torch.device, dtype: torch.dtype) -> None:
        self._logits = lowered.logits
        self.heads, self.size = _shape_of_keys(lowered.steps)
        self.operands = Operands(lowered.tables, device, dtype)
        plan = merged(lowered.steps)
        self._runs = [self._made(step, plan) for step in plan.steps]
        self._outs = [step.out for step in plan.steps]
        self._unread = _unread_after(plan, lowered.logits)

    def run(self, now: TorchPass) -> torch.Tensor:
        """Run one pass: logits [kept rows, vocabulary]."""
        for run, out, unread in zip(self._runs, self._outs, self._unread, strict=True):
            found = run(now)
            if found is not None and out is not None:
                now.values[out] = found
            for value in unread:
                now.values.pop(value, None)
        return now.values[self._logits]

    def _made(self, step: Step, plan: Merged) -> Run:
        if step in plan.blocks:
            return self._block(plan.blocks[step])
        if step in plan.added:
            return self._sum(step, plan.added[step])
        if step.op == Op.STORE:
            return self._store(step, plan.adjoin(step.of))
        return STEPS[step.op](self.operands, step)

    def _block(self, block: Block) -> Run:
        """Products of the same rows as one, and rotations of their outputs."""
        weight, bias = self._weights(block.products)
        read, parts = self.operands.read(block.products[0].of[0]), block.parts()
        turned = rotation(self.operands, block.turned[0]) if block.turned else None
        width = sum(step.count for step in block.turned)

        def run(now: TorchPass) -> None:
            whole = F.linear(read(now), weight, bias)
            if turned is not None:
                heads = whole[:, :width].view(len(whole), -1, block.turned[0].size)
                turned(now, heads, heads)
            for value, begin, end in parts:
                now.values[value] = whole[:, begin:end]

        return run

    def _sum(self, step: Step, product: Step) -> Read:
        """Add a product in place to what nobody reads later."""
        weight, bias = self._weights([product])
        total = next(each for each in step.of if each.value is not product.out)
        before, read = self.operands.read(total), self.operands.read(product.of[0])
        across = weight.T

        def run(now: TorchPass) -> torch.Tensor:
            found = before(now).addmm_(read(now), across)
            return found if bias is None else found.add_(bias)

        return run

    def _weights(self, products: Sequence[Step]) -> tuple[torch.Tensor, torch.Tensor | None]:
        linears = [step.linear for step in products if step.linear is not None]
        wanted = self.operands.dtype, self.operands.device
        alike = all(
            type(each.weight) is torch.Tensor and (each.weight.dtype, each.weight.device) == wanted
            for each in linears
        )
        if len(linears) < len(products) or not alike:
            raise ValueError("its products do not all have weights in its dtype on its device")
        return stacked(linears)

    def _store(self, step: Step, adjoin: bool) -> Run:
        """Write keys and values to the pool; adjoin: values follow keys in memory."""
        keys, values = (self.operands.read(each) for each in step.of)
        width = self.heads * self.size

        def run(now: TorchPass) -> None:
            where, pool = now.where, now.pool[:, step.layer].flatten(1)
            first = keys(now)
            if adjoin:
                both = first.as_strided((len(first), 2 * width), (first.stride(0), 1))
                pool.index_put_((where,), both)
            else:
                pool[:, :width].index_put_((where,), first)
                pool[:, width:].index_put_((where,), values(now))

        return run


def _shape_of_keys(steps: Sequence[Step]) -> tuple[int, int]:
    """Heads and size of keys and values, which must be the same everywhere."""
    stores = [step for step in steps if step.op == Op.STORE]
    shapes = {(step.key_heads, step.size, step.count) for step in stores}
    layers = {step.layer for step in stores}
    if len(shapes) != 1 or layers != {*range(len(layers))}:
        raise ValueError("its layers have keys and values of different shapes")
    heads, size, count = shapes.pop()
    if size != count:
        raise ValueError("its keys and values have different sizes")
    return heads, size


def _unread_after(plan: Merged, logits: Value) -> list[list[Value]]:
    """What nobody reads after each step."""
    last: dict[Value, int] = {}
    for place, step in enumerate(plan.steps):
        for each in (step, plan.added.get(step)):
            last.update(dict.fromkeys(each.reads() if each else (), place))
    found: list[list[Value]] = [[] for _ in plan.steps]
    for value, place in last.items():
        if value is not logits:
            found[place].append(value)
    return found
