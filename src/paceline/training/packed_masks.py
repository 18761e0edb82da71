"""Float masks for windows of packed texts, in the form that transformers takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from paceline.targets.support import attention_windows

__all__ = ["Masks", "masks_of"]

Masks = torch.Tensor | dict[str, torch.Tensor]
"""[batch, 1, rows, slots]; one per kind of layer if kinds differ."""


def masks_of(
    model: PreTrainedModel, sees: Callable[[int | None], torch.Tensor], dtype: torch.dtype
) -> Masks:
    """Make the mask of what each row may attend to.

    sees: most positions that a layer sees, its own included, None for all -> bool [batch, rows,
    slots].
    """
    masks = {}
    for kind, window in attention_windows(model.config.get_text_config()).items():
        hidden = ~sees(window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        masks[kind] = mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
    return masks if len(masks) > 1 else masks.popitem()[1]
