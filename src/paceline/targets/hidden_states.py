"""The hidden states that a model's output head reads, and the outputs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "Watcher",
    "call_with_states",
    "decoder_layers",
    "first_of",
    "side_by_side",
]


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model's decoder; none if they are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [each for each in model.get_decoder().children() if isinstance(each, nn.ModuleList)]
    fitting = [each for each in lists if len(each) == count]
    return [*fitting[0]] if len(fitting) == 1 else []


def first_of(output: Any) -> Any:
    """The hidden states in a layer's output."""
    return output[0] if isinstance(output, tuple | list) else output


class Watcher:
    """A forward hook that notes outputs in passes of the thread that made it: others may run the
    same model meanwhile."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        self._note, self._thread = note, get_ident()

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Called by the module."""
        if get_ident() == self._thread:
            self._note(output)


def call_with_states(
    model: PreTrainedModel, call: Callable[[], torch.Tensor], layers: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `call`, which runs `model`, returns, and the hidden states of all rows of that
    pass: the last ones [batch, width, hidden], after the last normalisation, with the outputs of
    these layers, counted from 1, beside them.

    Hooks work with all architectures: `output_hidden_states` would keep the states of all layers,
    and some models return them from before the normalisation.

    Raises ModelError for a model whose decoder yields none.
    """
    caught: list[torch.Tensor] = []

    def catch(output: Any) -> None:
        states = getattr(output, "last_hidden_state", None)
        caught.append(output[0] if states is None else states)

    outputs: dict[int, torch.Tensor] = {}

    def note(number: int, output: Any) -> None:
        outputs[number] = first_of(output)

    own = decoder_layers(model) if layers else []
    with ExitStack() as hooks:
        hooks.callback(model.get_decoder().register_forward_hook(Watcher(catch)).remove)
        for number in layers:
            noted = own[number - 1].register_forward_hook(Watcher(partial(note, number)))
            hooks.callback(noted.remove)
        result = call()
    if len(caught) != 1 or not isinstance(caught[0], torch.Tensor):
        raise ModelError(
            f"{type(model).__name__} does not expose its hidden states: choose another method"
        )
    states = caught[0]
    return result, torch.cat([states, *(outputs[each].to(states) for each in layers)], dim=-1)


def side_by_side(rows: torch.Tensor, hidden: int, places: Sequence[int]) -> torch.Tensor:
    """Select the states at `places` from rows of several states [n, states * hidden]; returns
    [n, places * hidden], a view if the places are consecutive."""
    first, last = places[0], places[-1]
    if hidden * len(places) == rows.shape[1]:
        return rows
    if [*places] == [*range(first, last + 1)]:
        return rows[:, hidden * first : hidden * (last + 1)]
    return torch.cat([rows[:, hidden * at : hidden * (at + 1)] for at in places], dim=1)
