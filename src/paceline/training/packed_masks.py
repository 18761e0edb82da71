"""Float masks for windows of packed texts, as a model of transformers takes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from paceline.targets.support import attention_windows

__all__ = ["Masks", "masks_of"]

Masks = torch.Tensor | dict[str, torch.Tensor]
"""[batch, 1, rows, slots]; one by kind of layer where kinds differ."""


def masks_of(
    model: PreTrainedModel, sees: Callable[[int | None], torch.Tensor], dtype: torch.dtype
) -> Masks:
    """What every row may attend to.

    sees: bool [batch, rows, slots] of layers that see no further back than so many positions, the
    own one included; None for all.
    """
    masks = {}
    for kind, window in attention_windows(model.config.get_text_config()).items():
        hidden = ~sees(window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        masks[kind] = mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
    return masks if len(masks) > 1 else masks.popitem()[1]
