"""Linear layers in the weights' own precision: as they are, or packed for the processor.

Plain `F.linear` on a CPU runs one row as a matrix-vector product at memory speed, but falls off a
cliff at two to four rows. With weights in oneDNN's blocked layout, up to eight rows cost about as
much as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F


class UnpackableError(Exception):
    """A layer cannot be packed; the message says why."""


class FastLinear(nn.Module):
    """Base of the stand-ins for `nn.Linear`.

    min_rows: fewer rows cost no less, so the target pads to it.
    weight_bytes: bytes that a pass reads.

    Weights are plain attributes: a packed layout is opaque to torch, so nothing that moves or
    saves parameters could handle it, and a lookup in a module's registry costs a microsecond.
    """

    min_rows = 1

    def __init__(self, shape: Sequence[int], nbytes: int, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.weight_bytes = nbytes + (0 if bias is None else bias.nbytes)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` shows them."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class PlainLinear(FastLinear):
    """`nn.Linear` on a given weight; fused projections use it where nothing is packed."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape, weight.nbytes, bias)
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        return F.linear(rows, self.weight, self.bias)


class PackedLinear(FastLinear):
    """`nn.Linear` on a weight in oneDNN's blocked layout, float32 or bfloat16.

    Raises UnpackableError if this build of torch or this processor has no such product.
    """

    # oneDNN's kernels for one to three rows are slower than its kernel for four, which runs at
    # memory speed.
    min_rows = 4

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        _check_packable(weight)
        super().__init__(weight.shape, weight.nbytes, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), self.min_rows)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._held = packed, None if bias is None else bias.detach(), "none", list[float](), ""
        self._dtype = weight.dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        # Autocast rounds what other operators return, but knows nothing of this product.
        out: torch.Tensor = self._product(rows.to(self._dtype), *self._held)
        return out.to(rows.dtype)


class PackedAndPlainLinear(PackedLinear):
    """Packed, with the plain weight beside it for passes of one row: twice the memory.

    Pays if the processor's matrix-vector product is faster than the packed product of four rows;
    `plain_pays` measures this.
    """

    min_rows = 1

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._plain = weight.detach(), bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        if rows.numel() == self.in_features:
            return F.linear(rows, *self._plain)
        return super().forward(rows)


Maker = Callable[[torch.Tensor, torch.Tensor | None], FastLinear]
"""Weight and bias -> layer; raises UnpackableError if the kind is not available."""


def make_linear(kind: Maker, weight: torch.Tensor, bias: torch.Tensor | None) -> FastLinear:
    """A layer of this kind; raises UnpackableError if torch or the processor has none."""
    try:
        return kind(weight, bias)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UnpackableError(f"torch does not support this product here ({reason})") from error


def _check_packable(weight: torch.Tensor) -> None:
    if weight.device.type != "cpu":
        raise UnpackableError(f"weights on {weight.device.type}")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UnpackableError("this build of torch has no oneDNN")
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UnpackableError("this processor has no products in bfloat16")
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise UnpackableError(f"weights in {str(weight.dtype).removeprefix('torch.')}")
