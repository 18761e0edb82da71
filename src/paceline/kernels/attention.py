"""Attention on a CPU, registered under its own name in transformers' attention interface.

Our passes say what each row sees, and run in the library's kernel. For any other call, torch's
kernel reads keys and values in place: transformers' own function repeats them per query head
whenever there is a mask, because CUDA's kernels need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.autocast import autocast_dtype
from paceline.kernels.native.calls import unavailable
from paceline.kernels.slots_seen import KINDS, SlotsSeen

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

GROUPED = "paceline_grouped"

# Several threads may borrow one model: the last one switches it back.
_switching = Lock()
_borrowed: WeakKeyDictionary[PreTrainedModel, tuple[int, Sequence[tuple[Any, Any]]]] = (
    WeakKeyDictionary()
)
"""How many borrow a model, and its configurations with what they called their attention before."""

# With fewer rows, torch's kernel sums in another order: a row would get other bits in a narrow pass
# than in a wide one.
_LEAST_ROWS = 4

RowsSeen = Mapping[int, SlotsSeen]
"""What the rows of a pass see, by the address of the mask that stands for it: layers with windows
get another mask."""


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    rows_seen: RowsSeen | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query [batch, heads, width, size], key and value [batch, key heads, slots, size] ->
    [batch, width, heads, size]; the contract of transformers' attention interface.

    rows_seen: the batch's one text is several texts, and keys and values are the whole cache.
    """
    cap = kwargs.get("softcap")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if cap is not None and rows_seen is None:
        return _capped(query, key, value, attention_mask, scale, cap), None
    if attention_mask is None or kwargs.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    if rows_seen is not None:
        seen = rows_seen[attention_mask.data_ptr()]
        return seen.attend(query[0], key[0], value[0], scale, cap or 0.0)[None], None
    width = query.shape[2]
    if width < _LEAST_ROWS:
        missing = (0, 0, 0, _LEAST_ROWS - width)
        attention_mask = attention_mask.expand(*attention_mask.shape[:-2], width, -1)
        query, attention_mask = F.pad(query, missing), F.pad(attention_mask, missing)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out[:, :, :width].transpose(1, 2).contiguous(), None


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """Attention whose scores are cap x tanh(score / cap), step by step: torch has no kernel for it.

    mask: True or 0 where a row sees a slot; None for a causal mask.
    """
    width, slots = query.shape[2], key.shape[2]
    if mask is None:
        mask = query.new_ones(width, slots, dtype=torch.bool).tril(slots - width)
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = torch.tanh(query @ key.transpose(2, 3) * scale / cap) * cap + mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous()


def _has_cap(config: PreTrainedConfig | None) -> bool:
    """Whether the scores of attention are capped, which torch's kernels cannot do."""
    return getattr(config, "attn_logit_softcapping", None) is not None


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Switch a model on the CPU over from "sdpa", or from "eager" if its scores are capped; returns
    whether that was possible."""
    usual = {"sdpa", "eager"} if _has_cap(model.config.get_text_config()) else {"sdpa"}
    if model.config._attn_implementation not in usual or model.device.type != "cpu":
        return False
    # Autocast may round values and not keys, but the library takes one format for both.
    if model.dtype not in KINDS or unavailable() or autocast_dtype(model) is not None:
        return False
    return switch_to_grouped(model)


def switch_to_grouped(model: PreTrainedModel) -> bool:
    """Let a model call `grouped_attention`; returns whether it can."""
    if not model._can_set_attn_implementation():
        return False
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, _usual_mask)
    model.set_attn_implementation(GROUPED)
    return bool(model.config._attn_implementation == GROUPED)


def _usual_mask(*args: Any, config: Any = None, **kwargs: Any) -> torch.Tensor | None:
    """The mask that a model had before, since it may be switched back in the middle of a pass."""
    from transformers.masking_utils import eager_mask, sdpa_mask

    mask = eager_mask if _has_cap(config) else sdpa_mask
    found: torch.Tensor | None = mask(*args, config=config, **kwargs)
    return found


@contextmanager
def attending_by_text(model: PreTrainedModel) -> Iterator[None]:
    """Apply `use_grouped_attention` to a borrowed model, inside this context only. Other callers of
    the model get the same results as before."""
    with _switching:
        users, before = _borrowed.get(model, (0, ()))
        if not users:
            own = [(each, each._attn_implementation) for each in _configs(model.config)]
            before = own if use_grouped_attention(model) else ()
        _borrowed[model] = users + 1, before
    try:
        yield
    finally:
        with _switching:
            users, before = _borrowed.pop(model)
            if users > 1:
                _borrowed[model] = users - 1, before
            elif before:
                model.set_attn_implementation(before[0][1])
                for config, name in before:  # each sets those within it, which follow
                    config._attn_implementation = name


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration and all within it, as for the parts that see: outer ones first."""
    yield config
    for name in config.sub_configs:
        if (inner := getattr(config, name, None)) is not None:
            yield from _configs(inner)
