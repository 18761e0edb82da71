"""A model's token embeddings and output head, for drafters that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.kernels.block_layers import BlockEmbedding
from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.programs.steps import Lowered, Op
from paceline.kernels.token_table import (
    ROW_FORMATS,
    device_of_inputs,
    has_rows,
    part_of_table,
    plain_table,
    rows_of,
    scale_of,
    size_of,
)
from paceline.records import WordTable
from paceline.targets.hidden_states import Watcher

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.targets.late_model import LateModel

_ROWS = 64  # of the identity per call, to read out a head without plain weights
_LITTLE = 2.0**-6  # a score that 16 bits hold exactly, and that no cap changes
_ROUNDING = 1e-2  # at most, of a score that a model caps in 16 bits

Head = tuple[torch.Tensor, torch.Tensor]


class Words:
    """The embeddings and output head of a model, from the steps of its passes where possible;
    otherwise the model is opened."""

    _kept: BlockEmbedding | None = None
    _head: tuple[BlockMatrix, torch.Tensor | None] | None = None

    def __init__(self, model: LateModel) -> None:
        self._model = model

    def use(self, steps: Lowered) -> None:
        """Take them from these steps from now on, if they hold them."""
        self._kept, self._head = _table_in(steps), _head_in(steps)

    @property
    def _table(self) -> nn.Module:
        return self._model.get().get_input_embeddings() if self._kept is None else self._kept

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Target.embed`."""
        found: torch.Tensor = self._table(ids)
        return found

    def table(self) -> WordTable | None:
        """See `Target.word_table`."""
        table = plain_table(self._table)
        if table is None:
            return None
        factor = scale_of(self._table)
        scale = 1.0 if factor is None else float(factor)
        if isinstance(table, torch.Tensor):
            kind = ROW_FORMATS[table.dtype]
            return WordTable(kind, table.data_ptr(), len(table), table.shape[1], table, scale)
        return WordTable(*table.native, table.panels, scale)

    def head(self, tokens: torch.Tensor | None) -> Head:
        """See `Target.output_head`."""
        if self._head is None:
            return output_head(self._model.get(), tokens)
        matrix, bias = self._head
        hidden = self._model.facts.hidden_size  # rounded matrices are padded to whole groups
        wanted = (torch.arange(matrix.outputs, device="cpu") if tokens is None else tokens).cpu()
        return _with_bias(matrix.values(wanted)[:, :hidden].contiguous(), bias, wanted)


def _head_in(steps: Lowered) -> tuple[BlockMatrix, torch.Tensor | None] | None:
    """The output head in blocks and its biases, if the head is the last step."""
    last = steps.steps[-1]
    if last.op != Op.PRODUCT or last.matrix is None:
        return None
    return last.matrix, last.bias


def _table_in(steps: Lowered) -> BlockEmbedding | None:
    """The table of tokens in blocks that passes read, if they use its rows unchanged."""
    looked_up = next((step for step in steps.steps if step.op == Op.EMBED), None)
    if looked_up is None or looked_up.matrix is None:
        return None
    # GIVEN replaces embeddings after any scaling: if it writes to EMBED's output, there is none.
    given = any(step.op == Op.GIVEN and step.out is looked_up.out for step in steps.steps)
    return BlockEmbedding(looked_up.matrix) if given else None


@torch.inference_mode()
def output_head(model: PreTrainedModel, tokens: torch.Tensor | None) -> Head:
    """Weights [n, hidden] and biases [n] of the output head; see `Target.output_head`.

    A packed, quantised or offloaded head has no weights to look at, so they are read out: zeros
    yield its biases, and the rows of an identity matrix its weights.
    """
    weights, biases = _unscaled(model, tokens)
    scale = _scale(model)
    return (weights, biases) if scale == 1.0 else (weights * scale, biases * scale)


def _scale(model: PreTrainedModel) -> float:
    """By what the model multiplies what its output head returns, as Granite and Cohere do; 1 if it
    does not."""
    asked = list[bool]()

    def say_little(output: torch.Tensor) -> torch.Tensor:
        asked.append(True)
        return torch.full_like(output, _LITTLE)

    ids = torch.zeros(1, 1, dtype=torch.long, device=part_of_table(model).device)
    if ids.is_meta:  # weights are elsewhere
        return 1.0
    with model.get_output_embeddings().register_forward_hook(Watcher(say_little)):
        scores = model(ids, use_cache=False, return_dict=True).logits
    scale = float(scores.float().median()) / _LITTLE if asked else 1.0
    return 1.0 if abs(scale - 1) < _ROUNDING else scale


def _unscaled(model: PreTrainedModel, tokens: torch.Tensor | None) -> Head:
    """The head itself, see `output_head`."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    config, dtype = model.config.get_text_config(), part_of_table(model).dtype
    size, hidden = config.vocab_size, size_of(table)[1]
    wanted = torch.arange(size, device="cpu") if tokens is None else tokens
    bias = getattr(head, "bias", None)
    # Offloaded weights are on "meta" between calls.
    if not getattr(getattr(head, "weight", None), "is_meta", False):
        # First, as a model may have its own head although its configuration says that it is tied.
        if has_rows(head) and size_of(head) == (size, hidden):
            return _with_bias(rows_of(head, wanted), bias, wanted)
        if bool(getattr(config, "tie_word_embeddings", False)):
            return _with_bias(rows_of(table, wanted).to(dtype), bias, wanted)
    none = torch.zeros(1, hidden, dtype=dtype, device=device_of_inputs(model))
    return _asked(head, wanted.to(none.device), none)


def _with_bias(weights: torch.Tensor, bias: torch.Tensor | None, ids: torch.Tensor) -> Head:
    """Weights of a head for these ids, and their biases, zeros if it has none."""
    index = ids.to(weights.device)
    return weights, weights.new_zeros(len(index)) if bias is None else bias[index].detach()


def _asked(head: nn.Module, index: torch.Tensor, none: torch.Tensor) -> Head:
    """Read out a head by calling it. none: a row of zeros [1, hidden]."""
    bias = head(none)[0, index]
    eye = torch.eye(none.shape[1], dtype=none.dtype, device=none.device)
    columns = [head(rows)[:, index] - bias for rows in torch.split(eye, _ROWS)]
    return torch.cat(columns).T.contiguous(), bias
