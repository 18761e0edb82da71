"""Choose which layers' outputs a program keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.errors import UsageError
from paceline.kernels.programs.steps import LAST, Lowered, Op, Step

__all__ = ["kept_outputs"]


def kept_outputs(steps: Lowered, layers: Sequence[int]) -> Lowered:
    """Return steps that keep the last states and, beside them, the outputs of these layers, counted
    from 1.

    Raises UsageError for a layer the model does not have.
    """
    kept = [LAST, *layers]

    def chosen() -> Iterator[Step]:
        for step in steps.steps:
            if step.op != Op.STATES:
                yield step
            elif step.layer in kept:
                yield replace(step, at=kept.index(step.layer) * step.count)

    found = [*chosen()]
    there = {step.layer for step in found if step.op == Op.STATES}
    if missing := [each for each in layers if each not in there]:
        raise UsageError(
            f"the model does not expose the output of layer {missing[0]}: choose another method"
        )
    return Lowered(found, steps.logits, steps.tables)
