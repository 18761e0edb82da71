"""A model's table of tokens and its output head, whether they are floats or stay in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.kernels.block_layers import BlockEmbedding, BlockLinear
from paceline.kernels.blocks import BlockMatrix

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "block_embedding",
    "device_of_table",
    "dtype_of_table",
    "has_rows",
    "head_reads_table",
    "is_table",
    "plain_table",
    "rows_of",
    "scale_of",
    "size_of",
    "takes_blocks",
]


class ScaledBlockEmbedding(BlockEmbedding):
    """An embedding in blocks whose every number is multiplied by one, as Gemma has it."""

    def __init__(self, matrix: BlockMatrix, dtype: torch.dtype, scale: torch.Tensor) -> None:
        super().__init__(matrix, dtype)
        self.embed_scale = scale.to(dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., inputs]."""
        found: torch.Tensor = super().forward(ids)
        return found * self.embed_scale


def plain_table(embedding: object) -> BlockMatrix | torch.Tensor | None:
    """The matrix [tokens, hidden] whose rows such a module gives as they are, in blocks or in float32
    on the CPU; None for any other module."""
    if type(embedding) is BlockEmbedding and embedding.dtype == torch.float32:
        return embedding.matrix
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None:
        return None
    table = embedding.weight.detach()
    fits = table.device.type == "cpu" and table.dtype == torch.float32 and table.is_contiguous()
    return table if fits else None


def takes_blocks(embedding: nn.Module) -> bool:
    """Whether `block_embedding` knows what this module does."""
    return type(embedding) is nn.Embedding or (
        type(embedding).__name__.endswith("TextScaledWordEmbedding")
        and isinstance(getattr(embedding, "embed_scale", None), torch.Tensor)
    )


def block_embedding(
    embedding: nn.Module, matrix: BlockMatrix, dtype: torch.dtype
) -> BlockEmbedding:
    """What stands for an embedding that `takes_blocks`, on a matrix [tokens, hidden].

    It has a parameter without numbers: by its parameters a model says where it is and in which
    format, and when its norms are replaced, too, there may be no other.
    """
    if type(embedding) is nn.Embedding:
        table = BlockEmbedding(matrix, dtype)
    else:
        scale: Any = embedding.embed_scale
        table = ScaledBlockEmbedding(matrix, dtype, scale)
    table.register_parameter("like", nn.Parameter(torch.empty(0, dtype=dtype)))
    return table


def scale_of(embedding: nn.Module) -> torch.Tensor | None:
    """What an embedding that `takes_blocks`, or its stand-in, multiplies every number by."""
    return getattr(embedding, "embed_scale", None)


def is_table(module: nn.Module) -> bool:
    """Whether a module looks ids up in a table, of floats or blocks."""
    return isinstance(module, nn.Embedding | BlockEmbedding)


def device_of_table(model: PreTrainedModel) -> torch.device:
    """Where the input embeddings are."""
    return _like(model).device


def dtype_of_table(model: PreTrainedModel) -> torch.dtype:
    """The format in which the input embeddings come out."""
    return _like(model).dtype


def has_rows(module: Any) -> bool:
    """Whether the weights of an output head can be looked at row by row: packed ones cannot."""
    return _matrix(module) is not None or isinstance(getattr(module, "weight", None), torch.Tensor)


def size_of(module: Any) -> torch.Size:
    """[tokens, hidden] of input embeddings or an output head."""
    matrix = _matrix(module)
    if matrix is not None:
        return torch.Size((matrix.outputs, matrix.inputs))
    size: torch.Size = module.weight.shape
    return size


def rows_of(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Some rows [count, hidden] of the weights of input embeddings or an output head, as they are
    stored, for ids int64 [count] on any device."""
    matrix = _matrix(module)
    if matrix is not None:
        return matrix.values(ids.cpu())
    rows: torch.Tensor = module.weight.detach()[ids.to(module.weight.device)]
    return rows


def head_reads_table(model: PreTrainedModel) -> bool:
    """Whether the output head's weights are those of the input embeddings, the very same memory."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    matrix = _matrix(table)
    if matrix is not None:
        return _matrix(head) is matrix
    return getattr(head, "weight", None) is table.weight


def _matrix(module: Any) -> BlockMatrix | None:
    return module.matrix if isinstance(module, BlockEmbedding | BlockLinear) else None


def _like(model: PreTrainedModel) -> torch.Tensor:
    """A parameter of the input embeddings: its place and format are theirs."""
    parameter: torch.Tensor = next(model.get_input_embeddings().parameters())
    return parameter
