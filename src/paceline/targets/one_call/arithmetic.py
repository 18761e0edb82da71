"""Turn operators that compute into steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline.kernels.programs.steps import Function, Join, Kind, Operand, Value
from paceline.targets.one_call.emitter import Emitter
from paceline.targets.one_call.recording import Node, Recording, UnfitError, tensors_in
from paceline.targets.one_call.values import Codes, features_of

_ATEN = torch.ops.aten

_BINARY = {
    _ATEN.add: Join.PLUS,
    _ATEN.add_: Join.PLUS,
    _ATEN.sub: Join.MINUS,
    _ATEN.rsub: Join.FROM,
    _ATEN.mul: Join.TIMES,
    _ATEN.mul_: Join.TIMES,
    _ATEN.div: Join.OVER,
    _ATEN.div_: Join.OVER,
}

_CURVES = {
    _ATEN.silu: Function.SILU,
    _ATEN.gelu: Function.GELU,
    _ATEN.relu: Function.RELU,
    _ATEN.tanh: Function.TANH,
    _ATEN.sigmoid: Function.SIGMOID,
    _ATEN.rsqrt: Function.RSQRT,
}

_POWERS: dict[float, Function] = {2: Function.SQUARE, 3: Function.CUBE}


class Arithmetic:
    """Makes steps. codes: of all tensors so far, by their ids."""

    def __init__(self, recording: Recording, codes: Mapping[int, Codes], emit: Emitter) -> None:
        self._recording, self._codes, self._emit = recording, codes, emit

    def value(self, node: Node) -> tuple[Value, int]:
        """Return the operator's value, and the axis of rows in its output. Raises UnfitError."""
        what, output, first = node.what, node.outputs[0], node.inputs[0]
        name = what.overloadpacket
        if output.dtype != torch.float32:
            raise UnfitError(f"it computes {what} in {output.dtype}")
        if name in _BINARY:
            value, axis = self._binary(node, _BINARY[name])
        elif name in _CURVES or name is _ATEN.pow:
            features = features_of(self._codes[id(first)])
            value, axis = self._emit.curve(features, _function_of(node)), features.axis
        elif what == _ATEN.mean.dim and list(node.inputs[1]) in ([-1], [output.dim() - 1]):
            features = features_of(self._codes[id(first)])
            value, axis = self._emit.mean(features, first.shape[-1]), features.axis
        elif what == _ATEN.native_layer_norm.default:
            *_, weight, bias, eps = node.inputs
            features = features_of(self._codes[id(first)])
            size = first.shape[-1]
            given = (
                first.new_ones(size) if weight is None else weight.detach(),
                first.new_zeros(size) if bias is None else bias.detach(),
            )
            factors = [Operand(size, data=each.float()) for each in given]
            value, axis = self._emit.norm(features, eps, *factors), features.axis
        else:
            raise UnfitError(f"it uses the unsupported operator {what}")
        if name._qualified_op_name.endswith("_") and self._has_views(first):
            raise UnfitError(f"{what} changes a tensor that has other views")
        return value, axis

    def _binary(self, node: Node, join: Join) -> tuple[Value, int]:
        left, right = node.inputs[:2]
        shape = node.outputs[0].shape
        if node.options.get("alpha", 1) != 1 or len(node.inputs) > 2:
            raise UnfitError(f"it uses {node.what} with a factor")
        known = left if id(left) in self._codes else right
        axis = features_of(self._codes[id(known)].broadcast_to(shape)).axis
        operands = [self._spread(each, shape, axis) for each in (left, right)]
        first = operands[0].value
        if first is None or first.kind == Kind.PLACE:
            turned = {Join.MINUS: Join.FROM, Join.OVER: Join.UNDER}
            operands.reverse()
            join = turned.get(join, join)
        count = shape.numel() // shape[axis]
        return self._emit.map(operands[0], join, operands[1], count), axis

    def _spread(self, given: Any, shape: torch.Size, axis: int) -> Operand:
        """Make an operand, broadcast to a shape."""
        if not isinstance(given, torch.Tensor):
            number = torch.tensor([float(given)], dtype=torch.float32, device="cpu")
            return Operand(1, data=number)
        if id(given) in self._codes:
            return self._emit.operand(features_of(self._codes[id(given)].broadcast_to(shape)))
        wide = given.detach().float().broadcast_to(shape)
        first = wide.select(axis, 0)
        if not bool((wide == first.unsqueeze(axis)).all()):
            raise UnfitError("it uses a constant that differs by row")
        numbers = first.reshape(-1)
        if bool((numbers == numbers[0]).all()):
            numbers = numbers[:1]
        return Operand(len(numbers), data=numbers.clone())

    def _has_views(self, tensor: torch.Tensor) -> bool:
        place = tensor.untyped_storage().data_ptr()
        made = tensors_in([node.outputs for node in self._recording.nodes])
        alike = {id(each) for each in made if each.untyped_storage().data_ptr() == place}
        return len(alike) > 1


def _function_of(node: Node) -> Function:
    name = node.what.overloadpacket
    if name is _ATEN.pow:
        if node.inputs[1] not in _POWERS:
            raise UnfitError(f"it raises to the power {node.inputs[1]}")
        return _POWERS[node.inputs[1]]
    if name is _ATEN.gelu and node.options.get("approximate", "none") == "tanh":
        return Function.GELU_TANH
    return _CURVES[name]
