"""Where a model goes and in which number format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import UsageError

if TYPE_CHECKING:
    import torch


def placement(
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    device_map: str | dict[str, Any] | None,
) -> dict[str, Any]:
    """The loader's `dtype` and `device_map` for the user's choices. Raises UsageError."""
    import torch

    if device is not None and device_map is not None:
        raise UsageError("device and device_map exclude each other: give one of them")
    cuda = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if cuda else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"there is no device {device!r}: use cpu, cuda or cuda:N") from error
    if place.type == "cuda" and not cuda:
        raise UsageError(
            "this PyTorch sees no CUDA device: use device='cpu' or install a CUDA build of PyTorch"
        )
    places = [place.type] if device_map is None else [device_map]
    if isinstance(device_map, dict):
        places = [*device_map.values()]
    on_gpu = cuda and not {*map(str, places)} <= {"cpu", "disk"}
    options: dict[str, Any] = {"dtype": _dtype(dtype, on_gpu)}
    if device_map is not None:
        options["device_map"] = device_map
    elif place.type != "cpu":
        options["device_map"] = {"": place}
    return options


def _dtype(dtype: str | torch.dtype | None, on_gpu: bool) -> torch.dtype:
    import torch

    if dtype is None:
        if not on_gpu:
            return torch.float32
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not (isinstance(chosen, torch.dtype) and chosen.is_floating_point):
        raise UsageError(f"dtype {dtype!r} is not one of float32, bfloat16, float16")
    return chosen
