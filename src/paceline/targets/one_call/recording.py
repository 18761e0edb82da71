"""Record what a model computes in one pass of its own forward.

All torch operators that run are recorded, in order, with their input and output tensors.
Paceline's products, norms and heads and the table of tokens are recorded as a whole, as are
attention and cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import Cache

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.norm import FastRMSNorm
from paceline.kernels.reduced_head import ReducedHead
from paceline.kernels.shared_input import Projection
from paceline.kernels.stand_in import LinearStandIn
from paceline.protocols import LAST_STATES
from paceline.targets.hidden_states import decoder_layers, noting_states
from paceline.targets.support import cache_argument

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 11
"""Rows of the recorded pass; a size that models do not use, so that it identifies rows."""

_WHOLE = (BlockLinear, Projection, LinearStandIn, FastRMSNorm, ReducedHead)


class UnfitError(Exception):
    """A model that cannot run in one call; the message says why."""


@contextmanager
def unfit_if_it_fails(what: str) -> Iterator[None]:
    """Turn any error into an UnfitError that begins with `what`: models and their layers may be of
    any kind, and raise anything."""
    try:
        yield
    except UnfitError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnfitError(f"{what} ({type(error).__name__}: {reason})") from error


@dataclass(frozen=True)
class Attended:
    """An attention. window: number of its kind of layer. scale, cap: of its scores."""

    window: int
    scale: float
    cap: float


@dataclass(frozen=True)
class Stored:
    """A layer's keys and values are written to the cache."""

    layer: int


@dataclass(frozen=True)
class Node:
    """One recorded computation.

    what: a torch operator, a module, `Attended` or `Stored`. inputs, options: its arguments.
    outputs: tensors.
    """

    what: Any
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    outputs: Sequence[torch.Tensor]

    def replay(self, function: Callable[..., Any], on: Callable[[torch.Tensor], Any]) -> Any:
        """Call `function` as this was called, but with `on(tensor)` for every tensor; returns as
        many things as there are outputs."""
        return _each_of(function(*_mapped(self.inputs, on), **self.options))


@dataclass(frozen=True)
class Recording:
    """A pass over `ROWS` rows.

    positions: [1, ROWS]. states: the last hidden states [1, ROWS, hidden]. outputs: of all layers,
    if the model has them in one list and calls each once. logits: [1, ROWS, vocabulary].
    """

    nodes: list[Node]
    positions: torch.Tensor
    states: torch.Tensor
    outputs: list[torch.Tensor]
    logits: torch.Tensor


def tensors_in(given: Any) -> list[torch.Tensor]:
    """All tensors, also those in lists, in order."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, list | tuple):
        return [each for part in given for each in tensors_in(part)]
    return []


def _mapped(given: Any, on: Callable[[torch.Tensor], Any]) -> Any:
    """The same with `on(tensor)` for every tensor."""
    if isinstance(given, torch.Tensor):
        return on(given)
    if isinstance(given, list | tuple):
        return type(given)(_mapped(each, on) for each in given)
    return given


def _each_of(found: Any) -> Sequence[Any]:
    """What an operator returned, as a sequence."""
    return found if isinstance(found, tuple | list) else (found,)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what runs, except inside modules recorded as a whole."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.inside = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not self.inside:
            self.nodes.append(Node(func, tuple(args), dict(kwargs or {}), _each_of(found)))
        return found

    def enter(self, *_: Any) -> None:
        """Hook before a module recorded as a whole."""
        self.inside += 1

    def leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Hook after such a module."""
        self.inside -= 1
        if not self.inside:
            self.nodes.append(Node(module, tuple(arguments), {}, (output,)))

    def attend(
        self,
        window: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        cap: float = 0.0,
    ) -> torch.Tensor:
        """Record what `SlotsSeen.attend` would do for layers of kind `window`; returns zeros [rows,
        heads, value size], as the numbers do not matter here."""
        self.inside += 1
        out = value.new_zeros(query.shape[1], query.shape[0], value.shape[2])
        self.inside -= 1
        self.nodes.append(Node(Attended(window, scale, cap), (query, key, value), {}, (out,)))
        return out


class _Keys(Cache):  # type: ignore[misc]
    """A cache that records what it is given, and stores nothing."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__(layers=[])
        self._recorder = recorder

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Record keys and values; return those of this pass alone."""
        inputs = key_states, value_states
        self._recorder.nodes.append(Node(Stored(layer_idx), inputs, {}, ()))
        return inputs

    def get_seq_length(self, layer_idx: int = 0, cache_position: Any = None) -> int:
        """Always 0: nothing is cached."""
        return 0


@torch.inference_mode(False)  # inference mode hides the parts of composite operators
@torch.no_grad()
def record(model: PreTrainedModel, windows: Mapping[str, Any]) -> Recording:
    """Record one pass of `model`. windows: what each kind of layer sees, in order. Raises
    UnfitError if the model does not use paceline's attention, or shows no hidden states."""
    recorder = _Recorder()
    masks = {kind: torch.zeros(1, 1, 1, 1, device="cpu") for kind in windows}
    seen = {
        mask.data_ptr(): SimpleNamespace(attend=partial(recorder.attend, number))
        for number, mask in enumerate(masks.values())
    }
    positions = torch.arange(ROWS, device="cpu")[None]
    ids = torch.zeros_like(positions)
    whole = [each for each in model.modules() if isinstance(each, _WHOLE)]
    layers = range(LAST_STATES, 1 + len(decoder_layers(model)))
    with ExitStack() as hooks:
        # Nested modules are left before their parents, so only the outermost is recorded.
        for module in [model.get_input_embeddings(), *whole]:
            hooks.callback(module.register_forward_pre_hook(recorder.enter).remove)
            hooks.callback(module.register_forward_hook(recorder.leave).remove)
        states = hooks.enter_context(noting_states(model, layers))
        hooks.enter_context(recorder)
        out = model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            **{cache_argument(model): _Keys(recorder)},
            use_cache=True,
            return_dict=True,
            rows_seen=seen,
        )
    last, *of_layers = states.values()
    if len(last) != 1:
        raise UnfitError("it does not expose its hidden states")
    if not any(isinstance(node.what, Attended) for node in recorder.nodes):
        raise UnfitError("it does not use paceline's attention")
    once = all(len(each) == 1 for each in of_layers)
    outputs = [each for (each,) in of_layers] if once else []
    return Recording(recorder.nodes, positions, last[0], outputs, out.logits)
