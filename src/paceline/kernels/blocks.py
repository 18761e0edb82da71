"""Matrices in blocks of 4, 5, 6 or 8 bits: products with them, and their numbers.

Formats and numbers are those of GGUF files. Products run in the library's own kernels, see
`native/src/blocks.h`: rows are rounded to 8 bits in groups of 32 with a scale each; products are
summed as integers within a group, and groups in order. So a row's result is the same, bit for bit,
whatever rows share its pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from paceline.kernels.memory import WeightMemory
from paceline.kernels.native.calls import kernels, unavailable

# In the library's order; inputs and bytes of a block.
_BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "BF16_DOT": (1, 2),
    "BF16_TILES": (1, 2),
}
_NUMBERS = {name: number for number, name in enumerate(_BLOCKS)}
_PANEL = 16
_GROUP = 32  # inputs that are rounded together
_PIECE = 1 << 22  # numbers that are rounded at a time

FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Float formats with kernels."""

BF16_PRODUCTS = ("BF16_DOT", "BF16_TILES")
"""bfloat16 for the processor's own products, which round rows to bfloat16: those of AVX-512 BF16,
which adds them in order, and of AMX, see `native/src/tiles.h`."""

FORMATS = frozenset(_BLOCKS) - {*FLOATS.values(), *BF16_PRODUCTS}
"""Formats of few bits with kernels."""

ROUNDED = {4: "Q4_1", 8: "Q8_0"}
"""Formats that floats are rounded to here, by number of bits."""


def bytes_per_row(format: str, inputs: int) -> int:
    """Bytes of a row of `inputs` numbers in a file.

    Raises ValueError unless `inputs` is a multiple of the format's block.
    """
    numbers, size = _BLOCKS[format]
    if inputs < 1 or inputs % numbers:
        raise ValueError(
            f"{inputs} numbers per row are not a multiple of the {numbers} of {format}"
        )
    return inputs // numbers * size


class BlockMatrix:
    """A matrix [outputs, inputs] in the layout that products read.

    panels: its bytes, see `native/src/blocks.h`.
    """

    def __init__(self, format: str, panels: torch.Tensor, outputs: int, inputs: int) -> None:
        self.format, self.outputs, self.inputs = format, outputs, inputs
        self.nbytes = panels.nbytes
        self._product = kernels().product
        self._moved = False
        self._use(panels)

    @classmethod
    def pack(
        cls, format: str, blocks: torch.Tensor, inputs: int, rows: torch.Tensor | None = None
    ) -> BlockMatrix:
        """From blocks as in a GGUF file.

        blocks: uint8 [outputs, bytes per row]. rows: int64 [outputs], the row of `blocks` for each
        output; None for all rows in order.

        Raises ValueError for sizes that do not match.
        """
        blocks = _checked(format, blocks, inputs)
        outputs = len(blocks) if rows is None else len(rows)
        if rows is not None:
            rows = rows.to(torch.int64).contiguous()
            if outputs and not 0 <= int(rows.min()) <= int(rows.max()) < len(blocks):
                raise ValueError(f"a row is out of range: there are {len(blocks)}")
        number, native = _NUMBERS[format], kernels()
        size = native.packed_bytes(number, outputs, inputs)
        panels = torch.empty(size, dtype=torch.uint8, device="cpu")
        order = None if rows is None else rows.data_ptr()
        native.pack(number, blocks.data_ptr(), order, outputs, inputs, panels.data_ptr())
        return cls(format, panels, outputs, inputs)

    @classmethod
    def of_panels(cls, format: str, panels: torch.Tensor, outputs: int, inputs: int) -> BlockMatrix:
        """From saved panels. Raises ValueError if they do not fit such a matrix."""
        size = kernels().packed_bytes(_NUMBERS.get(format, -1), outputs, inputs)
        if panels.dtype != torch.uint8 or panels.shape != (size,):
            raise ValueError(f"the panels do not fit a {format} matrix of {outputs} x {inputs}")
        return cls(format, panels, outputs, inputs)

    @classmethod
    def stack(cls, matrices: Sequence[BlockMatrix]) -> BlockMatrix | None:
        """The matrices stacked; None if they differ in format or inputs, or if any but the last
        does not fill its panels of 16 outputs."""
        first = matrices[0]
        alike = all((each.format, each.inputs) == (first.format, first.inputs) for each in matrices)
        if not alike or any(each.outputs % _PANEL for each in matrices[:-1]):
            return None
        panels = torch.cat([each.panels for each in matrices])
        return cls(first.format, panels, sum(each.outputs for each in matrices), first.inputs)

    def move(self, memory: WeightMemory) -> bool:
        """Move the panels to `memory`, once: whoever shares the matrix later may hold their
        address. Returns whether they have moved; where there is no room, they stay."""
        if self._moved:
            return False
        self._moved = True
        try:
            self._use(memory.empty(self.nbytes).copy_(self.panels))
        except OSError:
            return False
        return True

    def __deepcopy__(self, _: Any) -> BlockMatrix:
        """Copies of a model share it: it changes only while its model is prepared, and `native` has
        its address."""
        return self

    def _use(self, panels: torch.Tensor) -> None:
        self.panels = panels
        self.native = _NUMBERS[self.format], panels.data_ptr(), self.outputs, self.inputs

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [..., inputs] -> float32 [..., outputs]. bias: float32 [outputs]."""
        rows = rows.contiguous()
        out = rows.new_empty(*rows.shape[:-1], self.outputs)
        count = rows.numel() // self.inputs
        offset = None if bias is None else bias.data_ptr()
        self._product(*self.native, rows.data_ptr(), count, offset, out.data_ptr(), self.outputs)
        return out

    def values(self, ids: torch.Tensor) -> torch.Tensor:
        """The numbers of some outputs: int64 [count] -> float32 [count, inputs]. Raises ValueError
        for ids out of range."""
        ids = ids.to(torch.int64).contiguous()
        out = torch.empty(len(ids), self.inputs, dtype=torch.float32, device="cpu")
        kernels().values(*self.native, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def split(self, size: int) -> Iterator[torch.Tensor]:
        """The numbers of so many outputs at a time, as of a tensor."""
        return map(self.values, torch.split(torch.arange(self.outputs, device="cpu"), size))


def dequantise(format: str, blocks: torch.Tensor, inputs: int) -> torch.Tensor:
    """Blocks of a GGUF file, uint8 [outputs, bytes per row] -> float32 [outputs, inputs].

    Without the library, the slower gguf package converts them.
    """
    blocks = _checked(format, blocks, inputs)
    if unavailable():
        import gguf

        kind = gguf.GGMLQuantizationType[format]
        values = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), kind))
        return values.view(len(blocks), inputs)
    out = torch.empty(len(blocks), inputs, dtype=torch.float32, device="cpu")
    if len(blocks):
        sizes = len(blocks), inputs
        kernels().dequantise(_NUMBERS[format], blocks.data_ptr(), *sizes, out.data_ptr())
    return out


def quantised(weight: torch.Tensor | BlockMatrix, bits: int) -> BlockMatrix:
    """A matrix [outputs, inputs], rounded to 4 bits (Q4_1) or 8 bits (Q8_0) in groups of 32.

    Inputs are zero-padded to whole groups. Rows come in pieces: to round numbers takes three times
    their memory as floats, and an output head may be as large as all layers.
    """
    inputs = weight.inputs if isinstance(weight, BlockMatrix) else weight.shape[1]
    pieces = weight.split(max(1, _PIECE // inputs))
    blocks = torch.cat([rounded_blocks(piece, bits) for piece in pieces])
    return BlockMatrix.pack(ROUNDED[bits], blocks, whole_groups(inputs))


def rounded_blocks(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The blocks of `quantised`, as in a file: uint8 [outputs, bytes per row]. Each row is rounded
    on its own, so a matrix may come in pieces."""
    floats, *numbers = _in_groups(weight, bits)
    codes = floats.to(torch.uint8 if bits == 4 else torch.int8).view(torch.uint8)
    if bits == 4:
        codes = codes[..., :16] | codes[..., 16:] << 4
    parts = [*(each.view(torch.uint8) for each in numbers), codes]
    return torch.cat(parts, dim=-1).reshape(len(weight), -1)


def rounded_numbers(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers of `quantised`: [..., outputs, inputs] -> float32, of the same shape; without the
    library, and on any device."""
    codes, scale, *offsets = _in_groups(weight.flatten(0, -2), bits)
    numbers = codes * scale.float()
    for offset in offsets:
        numbers += offset.float()
    return numbers.flatten(1)[:, : weight.shape[-1]].view(weight.shape)


def rounded_size(outputs: int, inputs: int, bits: int) -> int:
    """Bytes of the blocks that a float matrix of this size is rounded to."""
    return outputs * bytes_per_row(ROUNDED[bits], whole_groups(inputs))


def whole_groups(inputs: int) -> int:
    """Inputs of a rounded matrix: padded to whole groups."""
    return inputs + -inputs % _GROUP


def in_floats(weight: torch.Tensor, format: str | None = None) -> BlockMatrix:
    """A float matrix [outputs, inputs], unchanged, in panels. Its dtype is one of `FLOATS`.

    format: one of `BF16_PRODUCTS`, for the same numbers in another format.
    """
    weight = weight.detach().contiguous()
    numbers = weight.view(torch.uint8).view(len(weight), -1)
    return BlockMatrix.pack(format or FLOATS[weight.dtype], numbers, weight.shape[1])


def _in_groups(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, ...]:
    """Codes [outputs, groups, 32] as floats; their scale, and their offset if bits are few, float16
    [outputs, groups, 1]."""
    missing = whole_groups(weight.shape[1]) - weight.shape[1]
    groups = F.pad(weight.detach().float(), (0, missing)).view(len(weight), -1, _GROUP)
    if bits == 4:
        low, high = groups.aminmax(dim=2, keepdim=True)
        scale, offset = ((high - low) / 15).half(), low.half()
        codes = (groups - offset.float()) * _over(scale)
        return codes.round_().clamp_(0, 15), scale, offset
    scale = (groups.abs().amax(dim=2, keepdim=True) / 127).half()
    return (groups * _over(scale)).round_().clamp_(-127, 127), scale


def _over(scale: torch.Tensor) -> torch.Tensor:
    # If a group has almost one value, the scale is 0, and the codes do not matter.
    return scale.float().reciprocal().nan_to_num(posinf=0.0)


def _checked(format: str, blocks: torch.Tensor, inputs: int) -> torch.Tensor:
    size = bytes_per_row(format, inputs)
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] != size:
        raise ValueError(
            f"blocks of {format} for {inputs} inputs must be uint8 [outputs, {size}], "
            f"got {blocks.dtype} {list(blocks.shape)}"
        )
    return blocks.contiguous()
