"""The hidden states that a model's output head reads, and the outputs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import ModelError
from paceline.protocols import LAST_STATES

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model's decoder; none if they are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [each for each in model.get_decoder().children() if isinstance(each, nn.ModuleList)]
    fitting = [each for each in lists if len(each) == count]
    return [*fitting[0]] if len(fitting) == 1 else []


class Watcher:
    """A forward hook that notes outputs in passes of the thread that made it: others may run the
    same model meanwhile.

    note: what it returns takes the output's place, unless that is None.
    """

    def __init__(self, note: Callable[[Any], Any]) -> None:
        self._note, self._thread = note, get_ident()

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Called by the module."""
        return self._note(output) if get_ident() == self._thread else None


@contextmanager
def noting_states(model: PreTrainedModel, layers: Sequence[int]) -> Iterator[dict[int, list[Any]]]:
    """Collect the outputs of these layers, see `Target.keep_states`, while the body runs the model.
    Hooks work with all architectures: `output_hidden_states` would keep the states of all layers,
    and some models return them from before the normalisation."""
    found: dict[int, list[Any]] = {each: [] for each in layers}

    def note(number: int, output: Any) -> None:
        states = output[0] if isinstance(output, tuple | list) else output
        found[number].append(getattr(output, "last_hidden_state", states))

    modules = {LAST_STATES: model.get_decoder()} | dict(enumerate(decoder_layers(model), start=1))
    with ExitStack() as hooks:
        for number in layers:
            noted = modules[number].register_forward_hook(Watcher(partial(note, number)))
            hooks.callback(noted.remove)
        yield found


def call_with_states(
    model: PreTrainedModel, call: Callable[[], torch.Tensor], layers: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `call`, which runs `model`, returns, and the hidden states of all rows of that
    pass [batch, width, hidden of each layer], see `noting_states`. Raises ModelError for a model
    whose decoder yields none."""
    with noting_states(model, layers) as found:
        result = call()
    if not all(len(each) == 1 and _are_states(each[0]) for each in found.values()):
        raise ModelError(
            f"{type(model).__name__} does not expose its hidden states: choose another method"
        )
    states = [each for (each,) in found.values()]
    return result, torch.cat([each.to(states[0]) for each in states], dim=-1)


def _are_states(output: Any) -> bool:
    """Whether it is [batch, width, hidden]; layers of Gemma 3n return several of these in one."""
    return isinstance(output, torch.Tensor) and output.dim() == 3


def side_by_side(rows: torch.Tensor, hidden: int, places: Sequence[int]) -> torch.Tensor:
    """Select the states at `places` from rows of several states [n, states * hidden]; returns
    [n, places * hidden], a view if the places are consecutive."""
    first, last = places[0], places[-1]
    if [*places] == [*range(first, last + 1)]:
        width = hidden * len(places)
        return rows if width == rows.shape[1] else rows.narrow(1, hidden * first, width)
    return torch.cat([rows[:, hidden * at : hidden * (at + 1)] for at in places], dim=1)
