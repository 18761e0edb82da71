"""A causal language model on the weights of a GGUF file, kept in their blocks or made floats.

transformers knows the names, and how llama.cpp changed each weight. A weight stays in its blocks
only if undoing that change permutes rows; any other weight is de-quantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.blocks import FORMATS, BlockMatrix, dequantise
from paceline.kernels.native.calls import unavailable
from paceline.kernels.token_table import block_embedding, takes_blocks
from paceline.models.gguf_file import SETTINGS, GgufFile
from paceline.models.gguf_header import GgufTensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_READABLE = FORMATS | _FLOATS.keys()
_PIECE = 1 << 22  # numbers de-quantised at a time


def why_unread(file: GgufFile) -> str:
    """One sentence about the first tensor in a format that is not read here; "" for none."""
    for tensor in file.tensors.values():
        if tensor.type not in _READABLE:
            return (
                f"{file.path} holds {tensor.name} as {tensor.type}, which neither paceline nor the "
                f"installed transformers reads: use a file with {', '.join(sorted(_READABLE))}"
            )
    return ""


def has_kernels(place: torch.device | None, dtype: torch.dtype) -> bool:
    """Whether there are kernels on blocks for a model on this device and in this dtype."""
    on_cpu = place is not None and place.type == "cpu"
    return on_cpu and dtype == torch.float32 and not unavailable()


def bytes_needed(file: GgufFile, dtype: torch.dtype, blocks: bool) -> int:
    """About how many bytes the model takes in memory."""
    return sum(
        each.nbytes if blocks and _in_blocks(each) else each.elements * dtype.itemsize
        for each in file.tensors.values()
    )


def load_gguf(
    file: GgufFile, config: PreTrainedConfig, *, blocks: bool, dtype: torch.dtype, **options: Any
) -> tuple[PreTrainedModel, set[str]]:
    """The model, and the names of parameters that the file does not hold.

    config: from the file. blocks: weights stay in their blocks if there is a kernel for them.
    dtype: of weights that become floats. options: go to transformers' `from_pretrained`.

    The file is read tensor by tensor; each one's pages are released at once.
    """
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    with torch.device("meta"):
        # A copy, as making a model changes its config.
        skeleton = AutoModelForCausalLM.from_config(deepcopy(config))
    kind = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
    processor = kind(config=config.to_dict())
    names = get_gguf_hf_weights_map(_Whole(skeleton), processor)
    if not file.tensors.keys() <= names.keys() | SETTINGS:  # search the parts of the model, too
        names = get_gguf_hf_weights_map(skeleton, processor)
    reading = _Reading(file, names, processor)
    kept = reading.stay(skeleton) if blocks else {}
    state = reading.state(kept, dtype)
    model, report = type(skeleton).from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, output_loading_info=True, **options
    )
    reading.fill(model, kept, dtype)
    return model, set(report["missing_keys"])


_Kept = tuple[GgufTensor, torch.Tensor | None]
"""A weight in its blocks, and rows: output i is row rows[i] of the file; row i if that is None."""


@dataclass
class _Reading:
    """A file, and the model's names for its tensors.

    names: GGUF's name -> the model's. processor: transformers', which undoes llama.cpp's changes.
    """

    file: GgufFile
    names: Mapping[str, str]
    processor: Any

    def stay(self, skeleton: PreTrainedModel) -> dict[str, _Kept]:
        """The weights that can stay in their blocks, by the model's name."""
        found = {}
        for tensor in self.file.tensors.values():
            name = self.names.get(tensor.name, "")
            module, _, kind = name.rpartition(".")
            if kind == "weight" and _in_blocks(tensor) and _is_replaceable(skeleton, module):
                known, rows = self._rows(tensor)
                if known:
                    found[name] = tensor, rows
        return found

    def _rows(self, tensor: GgufTensor) -> tuple[bool, torch.Tensor | None]:
        """Whether the processor at most permutes a tensor's rows, and how; None for not at all."""
        count = tensor.shape[0]
        # Two columns, to detect a processor that moves columns or changes values.
        probe = np.arange(2 * count, dtype=np.int64).reshape(count, 2)
        try:
            result = self.processor.process(weights=probe.copy(), name=tensor.name)
        except Exception:  # foreign code, which may expect other sizes than the probe's
            return False, None
        found = result.weights
        if result.name != tensor.name or found.shape != probe.shape or found.dtype != probe.dtype:
            return False, None
        if np.array_equal(found, probe):
            return True, None
        rows = found[:, 0] // 2
        permuted = np.array_equal(np.sort(rows), np.arange(count))
        if not permuted or not np.array_equal(found, probe[rows]):
            return False, None
        return True, torch.from_numpy(np.ascontiguousarray(rows))

    def state(self, kept: Mapping[str, _Kept], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The model's tensors by name; those kept in blocks are placeholders with just a shape."""
        state: dict[str, torch.Tensor] = {}
        for tensor in self.file.tensors.values():
            if self.names.get(tensor.name) in kept:
                continue
            # To assemble experts, the processor writes into the state itself.
            result = self.processor.process(
                weights=_floats(self.file, tensor).numpy(),
                name=tensor.name,
                tensor_key_mapping=self.names,
                parsed_parameters={"tensors": state},
            )
            if result.name in self.names:
                values = torch.from_numpy(np.ascontiguousarray(result.weights))
                state[self.names[result.name]] = values.to(dtype)
            elif result.name is not None and tensor.name not in SETTINGS:
                raise ModelError(
                    f"{self.file.path} holds {tensor.name}, for which transformers' "
                    f"{self.file.architecture} models have no place: use the model as safetensors"
                )
        state = {name: each.to(dtype) for name, each in state.items()}
        for name, (tensor, _) in kept.items():
            state[name] = torch.zeros((), dtype=dtype, device="cpu").expand(tensor.shape)
        return state

    def fill(self, model: PreTrainedModel, kept: Mapping[str, _Kept], dtype: torch.dtype) -> None:
        """Replace modules on placeholders by modules on blocks."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head is not None and head.weight is embedding.weight
        places = [name for name, module in model.named_modules() if tied and module is head]
        for name, (tensor, rows) in kept.items():
            own = name.removesuffix(".weight")
            module, data = model.get_submodule(own), self.file.data(tensor)
            matrix = BlockMatrix.pack(tensor.type, data, tensor.shape[-1], rows)
            self.file.forget(tensor)
            if module is embedding:
                model.set_submodule(own, block_embedding(module, matrix, dtype))
                for place in places:
                    model.set_submodule(place, BlockLinear(matrix, _bias(head)))
            else:
                model.set_submodule(own, BlockLinear(matrix, _bias(module)))
        left = [
            name
            for name, each in model.named_parameters()
            if each.dim() > 0 and not any(each.stride()) and each.numel() > 1
        ]
        if left:
            raise ModelError(
                f"{type(model).__name__} uses a weight in two places ({left[0]}), so it cannot "
                'stay in blocks: load the model with weights="packed"'
            )


class _Whole:
    """A model without its parts, for transformers' search for names: for each of hundreds of parts
    it would build the table of all names again."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config = model.config
        self.state_dict = model.state_dict

    def named_children(self) -> list[tuple[str, nn.Module]]:
        return []


def _in_blocks(tensor: GgufTensor) -> bool:
    return tensor.type in FORMATS and len(tensor.shape) == 2


def _is_replaceable(model: PreTrainedModel, name: str) -> bool:
    """Whether the module of this name has a stand-in on blocks."""
    module = model.get_submodule(name)
    if module is not model.get_input_embeddings():
        return type(module) is nn.Linear
    head = model.get_output_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings
    return takes_blocks(module) and (not tied or type(head) is nn.Linear)


def _bias(layer: Any) -> torch.Tensor | None:
    bias: torch.Tensor | None = layer.bias
    return None if bias is None else bias.detach()


def _floats(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """A tensor's numbers as float32, in their own memory."""
    data = file.data(tensor)
    if tensor.type in _FLOATS:
        values = data.view(_FLOATS[tensor.type]).to(torch.float32, copy=True)
    else:
        inputs = tensor.shape[-1]
        values = torch.empty(len(data), inputs, dtype=torch.float32, device="cpu")
        step = max(1, _PIECE // inputs)
        for first in range(0, len(data), step):
            piece = data[first : first + step]
            values[first : first + step] = dequantise(tensor.type, piece, inputs)
    file.forget(tensor)
    return values.view(tensor.shape)
