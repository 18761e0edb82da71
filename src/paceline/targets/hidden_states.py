"""What a model's output head reads, and the head itself, for drafters that have heads of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import ModelError
from paceline.kernels.blocks import number_of_format
from paceline.kernels.token_table import (
    device_of_table,
    dtype_of_table,
    has_rows,
    plain_table,
    rows_of,
    size_of,
)
from paceline.records import WordTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "call_with_states",
    "decoder_layers",
    "embedded",
    "first_of",
    "output_head",
    "side_by_side",
    "word_table",
]

_ROWS = 64  # of the identity that a head without weights is asked with


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model's decoder; none where it does not have them in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [each for each in model.get_decoder().children() if isinstance(each, nn.ModuleList)]
    fitting = [each for each in lists if len(each) == count]
    return [*fitting[0]] if len(fitting) == 1 else []


def first_of(output: Any) -> Any:
    """The hidden states of what a layer gives."""
    return output[0] if isinstance(output, tuple | list) else output


def call_with_states(
    model: PreTrainedModel, call: Callable[[], torch.Tensor], layers: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `call`, which runs `model`, returns; and the last hidden states [batch, width, hidden],
    behind the last normalisation, of all rows of that pass, with the outputs of these layers beside
    them, counted from 1.

    A hook is what all architectures have in common: `output_hidden_states` would keep the states of
    all layers, and some models count them before the normalisation.

    Raises ModelError for a model whose decoder yields none.
    """
    caught: list[torch.Tensor] = []

    def catch(module: nn.Module, inputs: Any, output: Any) -> None:
        states = getattr(output, "last_hidden_state", None)
        caught.append(output[0] if states is None else states)

    outputs: dict[int, torch.Tensor] = {}

    def note(number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[number] = first_of(output)

    own = decoder_layers(model) if layers else []
    with ExitStack() as hooks:
        hooks.callback(model.get_decoder().register_forward_hook(catch).remove)
        for number in layers:
            noted = own[number - 1].register_forward_hook(partial(note, number))
            hooks.callback(noted.remove)
        result = call()
    if len(caught) != 1 or not isinstance(caught[0], torch.Tensor):
        raise ModelError(f"{type(model).__name__} shows no hidden states: choose another method")
    states = caught[0]
    return result, torch.cat([states, *(outputs[each].to(states) for each in layers)], dim=-1)


def side_by_side(rows: torch.Tensor, hidden: int, places: Sequence[int]) -> torch.Tensor:
    """[n, places * hidden]: of rows of several states [n, states * hidden] those at these places; a
    view where they stand next to one another already."""
    first, last = places[0], places[-1]
    if hidden * len(places) == rows.shape[1]:
        return rows
    if [*places] == [*range(first, last + 1)]:
        return rows[:, hidden * first : hidden * (last + 1)]
    return torch.cat([rows[:, hidden * at : hidden * (at + 1)] for at in places], dim=1)


def embedded(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """[..., hidden] of ids int64 [...], see `Target.embed`."""
    embeddings: torch.Tensor = model.get_input_embeddings()(tokens)
    return embeddings


def word_table(model: PreTrainedModel) -> WordTable | None:
    """See `Target.word_table`."""
    table = plain_table(model.get_input_embeddings())
    if table is None:
        return None
    if isinstance(table, torch.Tensor):
        return WordTable(-1, table.data_ptr(), len(table), table.shape[1], table)
    of = number_of_format(table.format), table.panels.data_ptr(), table.outputs, table.inputs
    return WordTable(*of, table)


@torch.inference_mode()
def output_head(
    model: PreTrainedModel, tokens: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [n, hidden] and biases [n] of the output head; see `Target.output_head`.

    A head that was packed or quantised has no weights to look at, so it is asked: what it makes of
    nothing are its biases, and what it makes of a one at each place in turn its weights.
    """
    head = model.get_output_embeddings()
    table = model.get_input_embeddings()
    size = model.config.get_text_config().vocab_size
    wanted = torch.arange(size) if tokens is None else tokens
    if bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)):
        weights = rows_of(table, wanted).to(dtype_of_table(model))
        return weights, weights.new_zeros(len(wanted))
    hidden = size_of(table)[1]
    if has_rows(head) and size_of(head) == (size, hidden):
        found, bias = rows_of(head, wanted), getattr(head, "bias", None)
        index = wanted.to(found.device)
        return found, found.new_zeros(len(index)) if bias is None else bias[index].detach()
    none = torch.zeros(1, hidden, dtype=dtype_of_table(model), device=device_of_table(model))
    return _asked(head, wanted.to(none.device), none)


def _asked(
    head: nn.Module, index: torch.Tensor, none: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """none: a row of zeros [1, hidden]."""
    bias = head(none)[0, index]
    eye = torch.eye(none.shape[1], dtype=none.dtype, device=none.device)
    columns = [head(rows)[:, index] - bias for rows in torch.split(eye, _ROWS)]
    return torch.cat(columns).T.contiguous(), bias
