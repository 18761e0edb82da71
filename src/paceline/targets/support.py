"""Which models can be driven, asked before the first token: by configuration, then by trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.records import Path
from paceline.tree import Tree

if TYPE_CHECKING:
    from paceline.targets.causal_lm import CausalLMTarget

__all__ = ["attention_windows", "check_supported", "longest_context", "self_check"]

_FULL = "full_attention"
_SLIDING = "sliding_attention"
_ATTENTION = ("sdpa", "eager")

# Largest difference between the logits of a tree pass and those of the model's own forward that
# rounding can explain, relative to how far the logits of a row are spread.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2}
_TOLERANCE_FULL = 1e-4


def check_supported(model: PreTrainedModel) -> None:
    """Raises ModelError, naming the reason, for a model whose cache or attention cannot carry
    trees."""
    name = type(model).__name__
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder model: paceline serves decoder-only ones")
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} keeps a recurrent state, which cannot be rolled back to an accepted path: "
            "choose a model with an ordinary attention cache"
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}
    # GPT-Neo's local layers count cache slots where positions are meant.
    kinds |= set(getattr(config, "attention_layers", None) or ()) & {"local"}
    if kinds:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(kinds))}, whose cache cannot keep a "
            "tree path: choose a model with full or sliding-window attention"
        )
    attention = config._attn_implementation
    if attention not in _ATTENTION:
        raise ModelError(
            f"{name} runs attention {attention!r}, which does not take a tree mask: load it with "
            'attn_implementation="sdpa" or "eager"'
        )
    if model.training:
        raise ModelError(f"{name} is in training mode, so dropout is active: call model.eval()")


def attention_windows(config: PreTrainedConfig) -> dict[str, int | None]:
    """Kind of layer -> how far back it sees; None for everything."""
    window = getattr(config, "sliding_window", None)
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not kinds:
        # Without a list of kinds all layers are alike, and slide where a window is set (Mistral).
        return {_FULL: window}
    return {kind: window if kind == _SLIDING else None for kind in kinds}


def longest_context(config: PreTrainedConfig) -> int | None:
    """Most positions that every pass treats alike; None where the configuration names no limit.

    The "longrope" embedding turns all rows of a pass by other angles once one of them lies beyond
    the original context, so a long guess would change the rows before it: the limit is there.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings"))
        limits.append(getattr(config, "original_max_position_embeddings", None))
    return min((limit for limit in limits if limit), default=None)


@torch.no_grad()
def self_check(target: CausalLMTarget) -> None:
    """Score a small branching tree, commit a path across it, score again; compare every row with
    the model's own forward over the same tokens, without cache or mask.

    Raises ModelError where they differ by more than rounding, or the model refuses.
    """
    model, vocab = target.model, target.vocab_size
    ids = [(7 + 31 * step) % vocab for step in range(12)]
    prompt, tree = ids[:5], Tree(tuple(ids[5:9]), (-1, -1, 0, 1))
    next_root, last = ids[9], Tree.chain(ids[10:12])
    try:
        target.sync([prompt])
        (branching,) = target.score([tree])
        target.commit([Path((1, 3), (ids[6], ids[8], next_root))])
        (chained,) = target.score([last])
        texts = torch.tensor(
            [
                [*prompt, ids[5], ids[7], *[next_root] * 4],
                [*prompt, ids[6], ids[8], next_root, *ids[10:12], 0],
            ],
            device=target.device,
        )
        plain = model(texts, use_cache=False).logits
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise ModelError(
            f"{type(model).__name__} cannot be driven with a tree mask and explicit positions "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}): "
            "choose another model"
        ) from error
    rows = torch.cat([branching, chained])
    expected = torch.stack(
        [plain[0, 4], plain[0, 5], plain[1, 5], plain[0, 6], plain[1, 6], *plain[1, 7:10]]
    )
    target.sync([prompt])
    _compare(model, rows.float(), expected.float())


def _compare(model: PreTrainedModel, rows: torch.Tensor, expected: torch.Tensor) -> None:
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1).clamp(min=1e-6)
    gap = float(((rows - expected).norm(dim=-1) / spread).max())
    if not gap <= _TOLERANCE.get(model.dtype, _TOLERANCE_FULL):
        raise ModelError(
            f"a tree pass of {type(model).__name__} with {model.config._attn_implementation} "
            f"attention differs from its plain forward by {gap:.1%}, more than rounding explains: "
            'try attn_implementation="eager", or another model'
        )
