"""Attention with a mask on a CPU: fewer key than query heads without copies, and several texts in
one pass, each over its own stretch of a common cache.

transformers' own function repeats keys and values per query head whenever there is a mask, because
CUDA's kernels want it so; the CPU's kernel reads them where they are. Registered in transformers'
attention interface under a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["GROUPED", "TextGroup", "TextGroups", "attending_by_text", "use_grouped_attention"]

GROUPED = "paceline_grouped"

# The kernel sums in another order for fewer rows than this: a row would be worth other bits in a
# narrow pass than in a wide one.
_LEAST_ROWS = 4
# The kernel works through query rows in blocks of a multiple of this.
_BLOCK = 32


@dataclass(frozen=True)
class TextGroup:
    """Texts that attend in one call.

    rows: [texts x width] which rows of the pass, text by text. texts: how many.
    start: of the first text's stretch of the cache. step: from one to the next.
    slots: that each attends to.
    """

    rows: torch.Tensor
    texts: int
    start: int
    step: int
    slots: int


@dataclass(frozen=True)
class TextGroups:
    """All texts of a pass.

    places: [rows] where each row of the pass is among those of all groups; None where there is one
    group and rows are in their order.
    """

    groups: Sequence[TextGroup]
    places: torch.Tensor | None
    _folded: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)

    def masks(self, flat: torch.Tensor, heads: int) -> Iterator[torch.Tensor]:
        """Of each group [texts, 1, at least heads x width, slots].

        flat: those of all groups for one head, one after the other. heads: query heads that share
        a key head; they ask as so many rows.
        """
        begin = 0
        for index, group in enumerate(self.groups):
            width = len(group.rows) // group.texts
            end = begin + group.texts * width * group.slots
            # The same for all layers of a kind.
            known = (flat.data_ptr(), index, heads)
            if known not in self._folded:
                mask = (
                    flat[begin:end].view(group.texts, 1, width, group.slots).repeat(1, 1, heads, 1)
                )
                self._folded[known] = F.pad(mask, (0, 0, 0, _missing_rows(heads * width)))
            yield self._folded[known]
            begin = end


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    text_groups: TextGroups | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query [batch, heads, width, size], key and value [batch, key heads, slots, size] ->
    [batch, width, heads, size]; the contract of transformers' attention interface.

    text_groups: the one text of the batch is several, and keys and values are all of the cache.
    """
    if attention_mask is None or kwargs.get("position_bias") is not None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    if kwargs.get("softcap") is not None:
        raise ValueError("softcap is not supported")
    if text_groups is not None:
        return _by_text(query, key, value, attention_mask.flatten(), scaling, text_groups), None
    width = query.shape[2]
    if width < _LEAST_ROWS:
        missing = (0, 0, 0, _LEAST_ROWS - width)
        query, attention_mask = F.pad(query, missing), F.pad(attention_mask, missing)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out[:, :, :width].transpose(1, 2).contiguous(), None


def _by_text(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    masks: torch.Tensor,
    scaling: float | None,
    texts: TextGroups,
) -> torch.Tensor:
    """Query [1, heads, rows, size] -> [1, rows, heads, size].

    Query heads that share a key head ask as rows of one head: its keys are read once for them all.

    masks: see `TextGroups.masks`.
    """
    key_heads, shared = key.shape[1], query.shape[1] // key.shape[1]
    found = []
    for group, mask in zip(texts.groups, texts.masks(masks, shared), strict=True):
        rows = query[0] if texts.places is None else query[0].index_select(1, group.rows)
        width = len(group.rows) // group.texts
        asked = rows.reshape(key_heads, shared, group.texts, width, -1)
        asked = asked.permute(2, 0, 1, 3, 4).reshape(group.texts, key_heads, shared * width, -1)
        out = F.scaled_dot_product_attention(
            F.pad(asked, (0, 0, 0, mask.shape[2] - shared * width)),
            _stretches(key, group),
            _stretches(value, group),
            attn_mask=mask,
            scale=scaling,
        )
        out = out[:, :, : shared * width].reshape(group.texts, key_heads, shared, width, -1)
        found.append(out.permute(0, 3, 1, 2, 4).reshape(group.texts * width, query.shape[1], -1))
    together = found[0] if len(found) == 1 else torch.cat(found)
    if texts.places is not None:
        together = together.index_select(0, texts.places)
    return together[None]


def _missing_rows(rows: int) -> int:
    """How many more there have to be, so that no block of them has too few."""
    last = rows % _BLOCK
    return _LEAST_ROWS - last if 0 < last < _LEAST_ROWS else 0


def _stretches(pool: torch.Tensor, group: TextGroup) -> torch.Tensor:
    """[1, heads, slots of the pool, size] -> [texts, heads, slots, size], without a copy."""
    _, heads, _, size = pool.shape
    _, by_head, by_slot, by_number = pool.stride()
    return pool.as_strided(
        (group.texts, heads, group.slots, size),
        (group.step * by_slot, by_head, by_slot, by_number),
        pool.storage_offset() + group.start * by_slot,
    )


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Switch a model on the CPU from "sdpa" over; returns whether that was possible."""
    if model.config._attn_implementation != "sdpa" or model.device.type != "cpu":
        return False
    if not model._can_set_attn_implementation():
        return False
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, sdpa_mask)
    model.set_attn_implementation(GROUPED)
    return bool(model.config._attn_implementation == GROUPED)


@contextmanager
def attending_by_text(model: PreTrainedModel) -> Iterator[None]:
    """Let somebody else's model attend as `use_grouped_attention` has it, for as long as this
    lasts. Whoever calls it meanwhile gets the same results as ever."""
    with _switching:
        users, before = _borrowed.get(model, (0, ""))
        if not users:
            before = str(model.config._attn_implementation)
            if not use_grouped_attention(model):
                before = ""
        _borrowed[model] = users + 1, before
    try:
        yield
    finally:
        with _switching:
            users, before = _borrowed.pop(model)
            if users > 1:
                _borrowed[model] = users - 1, before
            elif before:
                model.set_attn_implementation(before)


# Several threads may borrow one model: the last to leave switches it back.
_switching = Lock()
_borrowed: WeakKeyDictionary[PreTrainedModel, tuple[int, str]] = WeakKeyDictionary()
