"""Select the rows whose logits are wanted right after the last attention, not after the last norm.

The last layer stores keys and values of all rows. What else it makes of them, only logits need:

    attend ─ product ─ sum ─ norm ─ products … ─ norm ─ select ─ head
    attend ─ select ─ product ─ sum ─ norm ─ products … ─ norm ─ head

Of a prompt, the logits of one row are wanted, so this saves most of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.kernels.programs.steps import Kind, Lowered, Op, Operand, Step, Value, readers_of

_BY_ROW = {Op.MAP, Op.MEAN, Op.RMS_NORM, Op.LAYER_NORM, Op.GATHER, Op.PRODUCT}
"""A row of their output depends on the same row of their inputs alone."""


def select_early(lowered: Lowered) -> Lowered:
    """Steps that compute the same logits; the same steps if this saves no product."""
    at = next((n for n, step in enumerate(lowered.steps) if step.op == Op.SELECT), 0)
    before, select, after = lowered.steps[:at], lowered.steps[at], lowered.steps[at + 1 :]
    late = _late(before, select)
    if not any(step.op == Op.PRODUCT for step in late):
        return lowered
    made = [step.out for step in late if step.out is not None]
    read = dict.fromkeys(value for step in late for value in step.reads() if value not in made)
    kept: dict[Value | None, Value] = {
        value: Value(value.number, value.count, Kind.KEPT) for value in [*read, *made]
    }
    selects = [Step(Op.SELECT, each.count, kept[each], (Operand.all_of(each),)) for each in read]
    kept[select.out] = kept[select.of[0].value]
    early = [step for step in before if step not in late]
    steps = [*early, *selects, *(_with(kept, step) for step in [*late, *after])]
    return replace(lowered, steps=steps)


def _late(steps: Sequence[Step], select: Step) -> list[Step]:
    """Those of the steps before `select` that only it needs, directly or through others of them."""
    if select.op != Op.SELECT or not select.of[0].whole:
        return []
    readers = readers_of([*steps, select])
    late = {select}
    for step in reversed(steps):
        of_rows = step.op in _BY_ROW and all(value.kind == Kind.ROWS for value in step.reads())
        if of_rows and step.out is not None and late.issuperset(readers.get(step.out, [step])):
            late.add(step)
    return [step for step in steps if step in late]


def _with(kept: Mapping[Value | None, Value], step: Step) -> Step:
    """The step on the values of kept rows."""
    of = [replace(each, value=kept.get(each.value, each.value)) for each in step.of]
    return replace(step, of=of, out=kept.get(step.out, step.out))
