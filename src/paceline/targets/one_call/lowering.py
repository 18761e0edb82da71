"""Lower the recording of a model to the steps of a program.

Operators that move elements are applied to codes, see `values`. A dozen kinds of operators that
compute are supported; a model with any other is not compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.kernels.block_layers import BlockEmbedding, BlockLinear
from paceline.kernels.norm import FastRMSNorm
from paceline.kernels.programs.steps import (
    Join,
    Kind,
    Lowered,
    Op,
    Operand,
    Step,
    Value,
    live_steps,
)
from paceline.kernels.reduced_head import ReducedHead
from paceline.kernels.shared_input import Projection
from paceline.kernels.stand_in import LinearStandIn
from paceline.kernels.token_table import scale_of
from paceline.protocols import LAST_STATES
from paceline.targets.one_call.arithmetic import Arithmetic
from paceline.targets.one_call.emitter import Emitter
from paceline.targets.one_call.positions import PositionTables
from paceline.targets.one_call.recording import (
    Attended,
    Node,
    Recording,
    Stored,
    UnfitError,
    tensors_in,
)
from paceline.targets.one_call.values import (
    CONSTANTS,
    MOVES,
    Codes,
    Features,
    features_of,
    new_codes,
    row_axis,
)
from paceline.targets.support import longest_context

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def lower(
    model: PreTrainedModel, recording: Recording, table: torch.Tensor | None = None
) -> Lowered:
    """Lower a recording of `model`. table: the embeddings [vocabulary, hidden], if it has none.
    Raises UnfitError, naming the reason."""
    lowering = _Lowering(model, recording, table)
    seen = [tensors_in([node.inputs, node.outputs]) for node in recording.nodes]
    last = {id(each): place for place, tensors in enumerate(seen) for each in tensors}
    last[id(recording.logits)] = len(seen)
    for place, (node, tensors) in enumerate(zip(recording.nodes, seen, strict=True)):
        lowering.take(node)
        lowering.forget(each for each in tensors if last[id(each)] == place)
    return lowering.finish()


class _Lowering:
    def __init__(
        self, model: PreTrainedModel, recording: Recording, table: torch.Tensor | None
    ) -> None:
        self._recording = recording
        self._table = model.get_input_embeddings()
        self._numbers = table
        self._codes: dict[int, Codes] = {}
        self._emit = Emitter()
        longest = longest_context(model.config.get_text_config())
        self._tables = PositionTables(recording.positions, longest)
        self._products: dict[tuple[int, Operand], Value] = {}
        self._arithmetic = Arithmetic(recording, self._codes, self._emit)
        self._stored: tuple[int, Operand, Operand] | None = None  # layer, keys and values
        self._define_place(recording.positions)

    def finish(self) -> Lowered:
        """Return the program. Raises UnfitError if no step makes the logits."""
        codes = self._codes.get(id(self._recording.logits))
        if codes is None:
            raise UnfitError("its logits do not come from a recorded operator")
        logits = self._emit.operand(features_of(codes))
        if logits.value is None or not logits.whole or logits.value.kind != Kind.KEPT:
            raise UnfitError("its logits are not the output of the last step")
        steps = live_steps(self._emit.steps, logits.value)
        read = dict.fromkeys(value for step in steps for value in step.reads())
        self._tables.values = [value for value in read if value.kind == Kind.PLACE]
        return Lowered(steps, logits.value, self._tables)

    def take(self, node: Node) -> None:
        """Lower the next node."""
        coded = [each for each in tensors_in(node.inputs) if id(each) in self._codes]
        if isinstance(node.what, Stored):
            self._store(node)
        elif isinstance(node.what, Attended):
            self._attend(node)
        elif node.what is self._table:
            self._embed(node)
        elif isinstance(node.what, nn.Module):
            self._module(node)
        elif coded and not all(isinstance(each, torch.Tensor) for each in node.outputs):
            raise UnfitError(f"its code reads a number out of a tensor ({node.what})")
        elif coded and node.what.overloadpacket not in CONSTANTS:
            self._operator(node, of_places=all(map(self._is_place, coded)))
        for layer, output in enumerate(self._recording.outputs, start=1):
            if any(output is each for each in node.outputs):
                self._keep(output, layer)
        if any(output is self._recording.states for output in node.outputs):
            self._select()

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Drop the codes of tensors not used again: all of them would outgrow a small model."""
        for each in tensors:
            self._codes.pop(id(each), None)

    # Operators.

    def _operator(self, node: Node, of_places: bool) -> None:
        """of_places: it depends only on positions."""
        if of_places:
            self._tables.nodes.append(node)
        if node.what in MOVES:
            self._move(node)
        elif of_places:
            for output in node.outputs:
                self._define_place(output)
        else:
            self._define(node.outputs[0], *self._arithmetic.value(node))

    def _move(self, node: Node) -> None:
        def codes_of(tensor: torch.Tensor) -> Codes:
            if id(tensor) not in self._codes:
                raise UnfitError(f"{node.what} reads a constant")
            return self._codes[id(tensor)]

        found = node.replay(MOVES[node.what], codes_of)
        for output, codes in zip(node.outputs, found, strict=True):
            if output.shape != codes.shape:
                raise UnfitError(f"{node.what} has an output of unexpected shape")
            self._codes[id(output)] = codes

    def _define_place(self, output: torch.Tensor) -> None:
        axis = row_axis(output.shape)
        value = self._emit.new_value(output.numel() // output.shape[axis], Kind.PLACE)
        self._tables.defined[value] = output, axis
        self._define(output, value, axis)

    def _is_place(self, tensor: torch.Tensor) -> bool:
        code = int(self._codes[id(tensor)].reshape(-1)[0])
        return self._emit.value_of_code(code).kind == Kind.PLACE

    # Layers recorded as a whole.

    def _embed(self, node: Node) -> None:
        output = node.outputs[0]
        count = output.shape[-1]
        numbers = self._numbers
        where = _table_of(self._table) if numbers is None else {"table": numbers}
        value = self._emit.new_value(count, Kind.ROWS)
        self._emit.add(Step(Op.EMBED, count, value, **where))
        scale = scale_of(self._table)
        if scale is not None:
            number = Operand(1, data=scale.detach().float().reshape(1))
            value = self._emit.map(Operand.all_of(value), Join.TIMES, number, count)
        self._emit.add(Step(Op.GIVEN, count, value, size=self._table.num_embeddings))
        self._define(output, value, 1)

    def _module(self, node: Node) -> None:
        module, (rows, *_) = node.what, node.inputs
        features, output = self._features(rows), node.outputs[0]
        if isinstance(module, FastRMSNorm):
            weight = Operand(len(module.weight), data=module.weight.float().contiguous())
            self._define(output, self._emit.norm(features, module.eps, weight), features.axis)
            return
        if isinstance(module, ReducedHead):
            said = self._product(module.rows, features)
            scores = self._emit.scatter(said, module.tokens, module.vocab_size)
            self._define(output, scores, features.axis)
            return
        linear = module.shared.linear if isinstance(module, Projection) else module
        shape = torch.Size([*rows.shape[:-1], linear.out_features])
        found = new_codes(self._product(linear, features).number, shape, features.axis)
        if isinstance(module, Projection):
            found = torch.split(found, list(module.shared.sizes), -1)[module.part]
        self._codes[id(output)] = found

    def _product(self, linear: nn.Module, features: Features) -> Value:
        """Rows times a layer's matrix, once for all that read it."""
        if not isinstance(linear, BlockLinear | LinearStandIn):
            raise UnfitError(
                f"it has a linear layer of the unsupported class {type(linear).__name__}"
            )
        key = id(linear), self._emit.in_a_row(features)
        if key not in self._products:
            self._products[key] = self._emit.product(linear, key[1])
        return self._products[key]

    def _store(self, node: Node) -> None:
        keys, values = map(self._operand, node.inputs)
        (_, heads, _, size), count = node.inputs[0].shape, node.inputs[1].shape[3]
        layer, of = node.what.layer, (keys, values)
        self._stored = layer, keys, values
        self._emit.add(Step(Op.STORE, count, None, of, layer=layer, size=size, key_heads=heads))

    def _attend(self, node: Node) -> None:
        query, key, value = node.inputs
        what: Attended = node.what
        queries, *others = map(self._operand, node.inputs)
        if self._stored is None or tuple(others) != self._stored[1:]:
            raise UnfitError("a layer attends to keys and values that it has not just stored")
        made = self._emit.make(
            Op.ATTEND,
            query.shape[0] * value.shape[2],
            queries,
            layer=self._stored[0],
            seen=what.window,
            size=query.shape[2],
            heads=query.shape[0],
            key_heads=key.shape[0],
            number=what.scale,
            cap=what.cap,
        )
        self._stored = None
        self._define(node.outputs[0], made, 0)

    def _select(self) -> None:
        """From here on, only kept rows matter."""
        states = self._recording.states
        operand = self._keep(states, LAST_STATES)
        kept = self._emit.new_value(operand.period, Kind.KEPT)
        self._emit.add(Step(Op.SELECT, kept.count, kept, (operand,)))
        self._define(states, kept, self._features(states).axis)

    def _keep(self, states: torch.Tensor, layer: int) -> Operand:
        """Add a step that can keep these states; see `kept_outputs`."""
        operand = self._operand(states)
        self._emit.add(Step(Op.STATES, operand.period, None, (operand,), layer=layer))
        return operand

    # What tensors hold.

    def _features(self, tensor: torch.Tensor) -> Features:
        if id(tensor) not in self._codes:
            raise UnfitError("a layer reads a tensor that does not depend on the text")
        return features_of(self._codes[id(tensor)])

    def _operand(self, tensor: torch.Tensor) -> Operand:
        return self._emit.in_a_row(self._features(tensor))

    def _define(self, tensor: torch.Tensor, value: Value, axis: int) -> None:
        self._codes[id(tensor)] = new_codes(value.number, tensor.shape, axis)


def _table_of(module: Any) -> dict[str, Any]:
    if isinstance(module, BlockEmbedding):
        return {"matrix": module.matrix}
    weight = module.weight.detach()
    if weight.dtype != torch.float32 or not weight.is_contiguous():
        raise UnfitError(f"its embeddings in {weight.dtype} are not a contiguous float32 table")
    return {"table": weight}
