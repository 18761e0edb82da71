"""The target's first layer in place of Chimera's n-gram encoder (table 6), for the study."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.models.draft_model import layers_of
from paceline.training.cutting import cut

__all__ = ["TransformerBottom"]


class TransformerBottom(nn.Module):
    """Reads packed texts with the first layer of `model`, as it is or with a copy that learns.

    Parameters: "layer.*", as the model's layer names them, if it is trained.

    Raises ModelError for a model that does not work with one layer.
    """

    def __init__(self, model: PreTrainedModel, trained: bool) -> None:
        super().__init__()
        shallow = cut(model, [0])
        stack: Any = shallow.get_submodule(layers_of(model))
        layer: nn.Module = stack[0]
        # A tuple is not registered: embeddings are the model's, and the rest does not matter.
        self._shallow = (shallow.requires_grad_(False), layer)
        if trained:
            self.layer = layer.requires_grad_(True)

    def whole(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Rows of texts int64 [rows, length] -> the layer's output, [rows, length, hidden] float32.

        start: [rows, length] int64, where in the row the text of each token begins.
        """
        shallow, layer = self._shallow
        caught: list[torch.Tensor] = []

        def catch(module: nn.Module, inputs: Any, output: Any) -> None:
            caught.append(output[0] if isinstance(output, tuple) else output)

        places = torch.arange(tokens.shape[1], device=tokens.device)
        sees = (start[:, :, None] == start[:, None, :]) & (places <= places[:, None])
        mask = torch.zeros(sees.shape, device=tokens.device)
        mask.masked_fill_(~sees, torch.finfo(mask.dtype).min)
        hook = layer.register_forward_hook(catch)
        try:
            shallow.get_decoder()(
                tokens,
                attention_mask=mask[:, None],
                position_ids=places - start,
                use_cache=False,
            )
        finally:
            hook.remove()
        return caught[0].float()
