"""A model's token table and its output head, whether in floats or in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.kernels.block_layers import BlockEmbedding, BlockLinear
from paceline.kernels.blocks import BlockMatrix

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ROW_FORMATS = {torch.float32: -1, torch.float16: -2, torch.bfloat16: -3}
"""`enum pl_words` of the C library."""


def plain_table(embedding: Any) -> BlockMatrix | torch.Tensor | None:
    """The matrix [tokens, hidden] whose rows the module returns, times `scale_of` it; in blocks or
    in floats on the CPU; None for any other module."""
    if isinstance(embedding, BlockEmbedding):
        return embedding.matrix
    if not takes_blocks(embedding) or embedding.max_norm is not None:
        return None
    table: torch.Tensor = embedding.weight.detach()
    fits = table.device.type == "cpu" and table.dtype in ROW_FORMATS and table.is_contiguous()
    return table if fits else None


def takes_blocks(embedding: nn.Module) -> bool:
    """Whether `block_embedding` can replace this module."""
    return type(embedding) is nn.Embedding or (
        type(embedding).__name__.endswith("TextScaledWordEmbedding")
        and isinstance(getattr(embedding, "embed_scale", None), torch.Tensor)
    )


def block_embedding(
    embedding: nn.Module, matrix: BlockMatrix, dtype: torch.dtype
) -> BlockEmbedding:
    """The stand-in for an embedding that `takes_blocks`, on a matrix [tokens, hidden].

    It has an empty parameter: a model takes its device and dtype from its parameters, and once its
    norms are replaced, too, there may be no others.
    """
    table = BlockEmbedding(matrix, dtype, scale_of(embedding))
    table.register_parameter("like", nn.Parameter(torch.empty(0, dtype=dtype, device="cpu")))
    return table


def scale_of(embedding: nn.Module) -> torch.Tensor | None:
    """The factor that an embedding that `takes_blocks`, or its stand-in, multiplies numbers by."""
    return getattr(embedding, "embed_scale", None)


def part_of_table(model: PreTrainedModel) -> torch.Tensor:
    """A parameter of the input embeddings, with their device and dtype."""
    parameter: torch.Tensor = next(model.get_input_embeddings().parameters())
    return parameter


def device_of_inputs(model: PreTrainedModel) -> torch.device:
    """Where inputs may be: beside the input embeddings, or on the CPU if these are offloaded, since
    accelerate moves inputs."""
    table = part_of_table(model)
    return torch.device("cpu") if table.is_meta else table.device


def has_rows(module: Any) -> bool:
    """Whether an output head's weights can be read row by row: packed ones cannot."""
    return _matrix(module) is not None or isinstance(getattr(module, "weight", None), torch.Tensor)


def size_of(module: Any) -> torch.Size:
    """[tokens, hidden] of input embeddings or an output head."""
    matrix = _matrix(module)
    if matrix is not None:
        return torch.Size((matrix.outputs, matrix.inputs))
    size: torch.Size = module.weight.shape
    return size


def rows_of(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Rows [count, hidden] of the weights of input embeddings or an output head, as stored, for
    int64 ids [count] on any device."""
    matrix = _matrix(module)
    if matrix is not None:
        return matrix.values(ids.cpu())
    rows: torch.Tensor = module.weight.detach()[ids.to(module.weight.device)]
    return rows


def head_reads_table(model: PreTrainedModel) -> bool:
    """Whether the output head and the input embeddings share their weights in memory."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    matrix = _matrix(table)
    if matrix is not None:
        return _matrix(head) is matrix
    return getattr(head, "weight", None) is table.weight


def _matrix(module: Any) -> BlockMatrix | None:
    return module.matrix if isinstance(module, BlockEmbedding | BlockLinear) else None
