"""What drafters take from the layers of their target: sizes, the last one's weights, or the first
layer in place of Chimera's n-gram encoder (table 6), for the study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.drafters.context_encoder import ContextEncoder
from paceline.errors import ModelError, UsageError
from paceline.models.draft_model import layers_of
from paceline.trained_configs import ChimeraConfig, EagleConfig
from paceline.training.batches import masks_of
from paceline.training.cutting import cut
from paceline.training.methods.settings import ChimeraSettings, EagleSettings

# Names of a layer's parts in Llama and its relatives.
_TURNED = {"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj"}
_OTHERS = ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORM = "input_layernorm"
# Llama names the norm before the feed-forward by what precedes it; Gemma 2 and 3 have both.
_AFTER, _BEFORE = "post_attention_layernorm", "pre_feedforward_layernorm"

# Names of the normalisation after the last layer.
_FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")

_SMALLEST = 1e-2  # of its gains, to divide by

ConfigT = TypeVar("ConfigT", bound=EagleConfig | ChimeraConfig)


def sized_like(config: ConfigT, base: PreTrainedConfig, intermediate: int = 0) -> ConfigT:
    """`config` with the sizes of the base's layers and the rotary base of the last one.

    intermediate: of the feed-forward; 0 takes the base's, or four times the hidden size if the
    base does not say.
    """
    sizes: Any = base.get_text_config()
    heads, hidden = sizes.num_attention_heads, sizes.hidden_size
    turns = getattr(sizes, "rope_parameters", None) or {}
    *_, kind = getattr(sizes, "layer_types", None) or [""]
    turns = turns.get(kind) or turns  # Gemma 3 has a base for each kind of layer
    angles = turns.get("rope_theta") or getattr(sizes, "rope_theta", None)
    return replace(
        config,
        attention_heads=heads,
        kv_heads=getattr(sizes, "num_key_value_heads", None) or heads,
        head_size=getattr(sizes, "head_dim", None) or hidden // heads,
        intermediate=intermediate or getattr(sizes, "intermediate_size", None) or 4 * hidden,
        rotary_base=float(angles or config.rotary_base),
    )


def last_layer_of(model: PreTrainedModel) -> nn.Module:
    """A model's last layer. Raises ModelError if its layers are not in one list."""
    layers: Any = model.get_submodule(layers_of(model))
    found: nn.Module = layers[-1]
    return found


def final_norm_of(model: PreTrainedModel) -> nn.Module:
    """The normalisation between the last layer and the output head. Raises ModelError if there is
    none with a usual name."""
    for name in _FINAL_NORMS:
        norm = getattr(model.get_decoder(), name, None)
        if isinstance(norm, nn.Module):
            return norm
    raise ModelError(
        f"the last normalisation of {type(model).__name__} was not found, so no drafter can be "
        "trained with it"
    )


def has_biases(model: PreTrainedModel) -> bool:
    """Whether the queries, keys and values of a model's last layer have biases."""
    return f"{_TURNED['query']}.bias" in dict(last_layer_of(model).named_parameters())


def check_block(
    settings: EagleSettings | ChimeraSettings, model: PreTrainedModel, first: Any, kind: str
) -> None:
    """Check the block of a method. first: the parts that it starts from, if any. kind: of the block,
    for errors.

    Raises UsageError for another width of its feed-forward than these have, or than can be copied,
    and ModelError for a model whose last layer lacks parts that `copy_last_layer` copies. Its
    matrices may be in blocks.
    """
    width = sized_like(settings.config(), model.config, settings.intermediate).intermediate
    if first is not None and first.config.intermediate != width:
        raise UsageError(
            f"the block to start from is {first.config.intermediate} wide, not {width}: train with "
            f"--intermediate {first.config.intermediate}"
        )
    if settings.block != "last-layer":
        return
    most = sized_like(settings.config(), model.config).intermediate
    if width > most:
        raise UsageError(
            f"the model's last layer has {most} units to copy, not {width}: reduce --intermediate, "
            "or train with --block random"
        )
    layer = last_layer_of(model)
    with _copying(model, kind):
        for name in (*_TURNED.values(), *_OTHERS):
            layer.get_submodule(name)
        for name in (_NORM, _AFTER):
            layer.get_parameter(f"{name}.weight")
    final_norm_of(model)


@contextmanager
def _copying(model: PreTrainedModel, kind: str) -> Iterator[None]:
    """Raise ModelError if a part of the last layer is missing, or has another size."""
    try:
        yield
    except (AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the last layer of {type(model).__name__} cannot be copied into {kind}'s block "
            f"({error}): train with --block random"
        ) from error


@torch.no_grad()
def copy_last_layer(block: nn.Module, model: PreTrainedModel, norm: str, kind: str) -> None:
    """Copy the weights of a model's last layer into `block`, which is sized like it.

    norm: the block's name of its first normalisation. kind: of the block, for errors. If the
    layer's feed-forward is wider, its units with the largest weights are taken.

    Raises ModelError for a model whose layers have other parts.
    """
    layer = last_layer_of(model)
    inner_norm = _BEFORE if hasattr(layer, _BEFORE) else _AFTER
    with _copying(model, kind):
        for own, name in _TURNED.items():
            for part, numbers in block.get_submodule(own).named_parameters():
                numbers.copy_(layer.get_parameter(f"{name}.{part}"))
        block.get_parameter("join.weight").copy_(layer.get_parameter("self_attn.o_proj.weight"))
        for own, name in {norm: _NORM, "inner_norm": inner_norm}.items():
            block.get_parameter(own).copy_(gains_of(layer.get_submodule(name)))
        gate, up, down = (
            layer.get_parameter(f"mlp.{name}_proj.weight").float()
            for name in ("gate", "up", "down")
        )
        sizes = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        units = sizes.topk(len(block.get_parameter("gate.weight"))).indices.sort().values
        block.get_parameter("gate.weight").copy_(gate[units])
        block.get_parameter("up.weight").copy_(up[units])
        block.get_parameter("down.weight").copy_(down[:, units])


@torch.no_grad()
def begin_as_last_layer(encoder: ContextEncoder, model: PreTrainedModel) -> None:
    """Copy a model's last layer to Chimera's context encoder, as the official code once did, and
    its last normalisation if the encoder ends in one.

    Mature states come out of this one, so `mature_norm` undoes its gains before the layer's.

    Raises ModelError for a model whose layers have other parts.
    """
    copy_last_layer(encoder, model, "green_norm", "Chimera")
    gains = gains_of(final_norm_of(model))
    small = gains.abs() < _SMALLEST
    encoder.mature_norm.copy_(encoder.green_norm / gains.masked_fill(small, 1.0))
    if encoder.output_norm is not None:
        encoder.output_norm.copy_(gains)


@torch.no_grad()
def gains_of(norm: nn.Module) -> torch.Tensor:
    """[hidden] float32: by what a normalisation multiplies; not always its weights, since Gemma's
    add one to them."""
    weight = norm.get_parameter("weight")
    signs = torch.ones_like(weight)
    signs[::2] = -1.0  # mean 0, square 1: normal already
    found: torch.Tensor = (norm(signs) - norm(-signs)).float() / 2 * signs.float()
    # The epsilon under the root makes these a little smaller.
    return weight.float() if torch.allclose(found, weight.float(), rtol=1e-3) else found


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
        masks = masks_of(shallow, lambda window: sees, torch.float32)
        with layer.register_forward_hook(catch):
            shallow.get_decoder()(
                tokens, attention_mask=masks, position_ids=places - start, use_cache=False
            )
        return caught[0].float()
