"""The structure of trained parts (heads, draft models, prompt tokens), as stored in their folders.

It lies apart from drafters and training, so that the command line reads it without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args, get_origin, get_type_hints

from paceline.errors import ModelError

Form = Literal["compact", "full"]
"""What a head ends in: the target's output head, which is not stored, or one of its own."""

Bottom = Literal["ngram", "transformer frozen", "transformer finetune"]
"""What reads the tokens that the target has not read yet (Chimera, table 6): the n-gram encoder, or
the target's first layer, frozen or trained further."""

PromptMask = Literal["ensemble", "decoder", "encoder"]
"""Which embeddings see which, if a prompt token has several (PPD, section 4.4.3)."""

PromptHead = Literal["shared", "small", "full"]
"""What turns the states of prompt tokens into scores (PPD, section 4.4.2): the model's own output
head, the same after a trained residual block as in Medusa's heads, or a trained copy of it."""


@dataclass(frozen=True)
class MedusaConfig:
    """Medusa-1 heads (Cai et al. 2024, arXiv 2401.10774).

    heads: the i-th guesses the token i places after the next one. layers: residual blocks of each.
    form: the paper's heads are "full".
    vocabulary: guess only among this many tokens, the most frequent in the training answers; 0 for
    all.

    Raises ModelError for a value out of range.
    """

    heads: int = 4
    layers: int = 1
    form: Form = "compact"
    vocabulary: int = 0

    def __post_init__(self) -> None:
        check_least(self, heads=1, layers=0, vocabulary=0)
        check_choices(self)
        if self.form == "compact" and self.layers == 0:
            raise ModelError(
                "compact heads need a residual block, or all are the same: set layers to 1 or more"
            )


@dataclass(frozen=True)
class ChimeraConfig:
    """The draft model of Chimera (section 4.1).

    heads: the i-th guesses the token i places after the next one.
    order: tokens that the n-gram encoder sees, 1 to 5; the paper's are trigrams.
    form: the paper's heads are "full".
    vocabulary: see `MedusaConfig`.
    rank: of the matrices of the n-gram encoder's block and of compact heads, each then a product of
    two; 0 leaves them whole, as in the paper.
    residual: whether heads see the target's last state beside the draft state (figure 8).
    layers: residual blocks of a compact head, after the two states are joined; full heads have
    none.
    bottom: all but "ngram" are for the study only.
    attention_heads, kv_heads, head_size, intermediate, rotary_base: of the full context encoder.
    final_norm: whether it ends in a normalisation, as the target does. biases: whether its queries,
    keys and values have some, as Qwen2's do.

    Raises ModelError for a value out of range.
    """

    heads: int = 3
    order: int = 3
    form: Form = "compact"
    vocabulary: int = 0
    rank: int = 0
    residual: bool = True
    layers: int = 0
    bottom: Bottom = "ngram"
    attention_heads: int = 8
    kv_heads: int = 8
    head_size: int = 64
    intermediate: int = 1024
    rotary_base: float = 10_000.0
    final_norm: bool = False
    biases: bool = False

    def __post_init__(self) -> None:
        check_least(self, heads=1, order=1, layers=0, vocabulary=0, rank=0)
        check_choices(self)
        if self.order > 5:
            raise ModelError(f"order must be 1 to 5, got {self.order}")
        _check_attention(self)
        if self.form == "full" and self.layers:
            raise ModelError("full heads of Chimera have no residual blocks: leave layers at 0")
        if self.rank and (self.form == "full" or self.bottom != "ngram"):
            raise ModelError(
                "rank applies only to compact heads on an n-gram encoder: leave it at 0"
            )


@dataclass(frozen=True)
class EagleConfig:
    """The draft model of EAGLE.

    layers: of the target, counted from 1, whose outputs together make a feature (EAGLE-3); () takes
    the last hidden state (EAGLE 1 and 2).
    steps: consecutive guesses it was trained for; it drafts to any depth.
    vocabulary: see `MedusaConfig`.
    attention_heads, kv_heads, head_size, intermediate: of the block. rotary_base: of its positions.
    biases: whether queries, keys and values have some, as Qwen2's do.

    Raises ModelError for a value out of range.
    """

    layers: tuple[int, ...] = ()
    steps: int = 3
    vocabulary: int = 0
    attention_heads: int = 8
    kv_heads: int = 8
    head_size: int = 64
    intermediate: int = 1024
    rotary_base: float = 10_000.0
    biases: bool = False

    def __post_init__(self) -> None:
        check_least(self, steps=1, head_size=2, vocabulary=0)
        _check_attention(self)
        object.__setattr__(self, "layers", tuple(self.layers))  # a list, where it was read as JSON
        if not all(isinstance(layer, int) for layer in self.layers):
            raise ModelError(f"layers must be whole numbers, got {self.layers}")
        if min(self.layers, default=1) < 1 or list(self.layers) != sorted(set(self.layers)):
            raise ModelError(f"layers must be ascending, from 1 up, got {self.layers}")


@dataclass(frozen=True)
class PromptConfig:
    """The prompt tokens of PPD.

    prompt_tokens: their number, m; the i-th guesses the token i places after the next one.
    epts: embeddings per prompt token (ensemble prompt tokens, section 4.2).
    mask: which of them see which.
    learned_weights: weight their logits by trained numbers instead of averaging them (4.4.4).
    prefix_tokens: trained keys and values per layer that each prompt token alone sees (4.4.1).
    head: the output head of prompt tokens (4.4.2).
    exits: number of last layers whose states are averaged for the guess (4.4.5).

    Raises ModelError for a number out of range.
    """

    prompt_tokens: int = 3
    epts: int = 1
    mask: PromptMask = "ensemble"
    learned_weights: bool = False
    prefix_tokens: int = 0
    head: PromptHead = "shared"
    exits: int = 1

    def __post_init__(self) -> None:
        check_least(self, prompt_tokens=1, epts=1, exits=1, prefix_tokens=0)
        check_choices(self)


def check_choices(config: object) -> None:
    """Raises ModelError unless each field that is a `Literal` has one of its values."""
    for name, kind in get_type_hints(type(config)).items():
        known = get_args(kind)
        if get_origin(kind) is Literal and (value := getattr(config, name)) not in known:
            raise ModelError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_least(config: object, **fields: int) -> None:
    """Raises ModelError unless each of these fields is a whole number of at least this value."""
    for name, least in fields.items():
        value = getattr(config, name)
        if not isinstance(value, int):
            raise ModelError(f"{name} must be a whole number, got {value!r}")
        if value < least:
            raise ModelError(f"{name} must be at least {least}, got {value}")


def _check_attention(config: ChimeraConfig | EagleConfig) -> None:
    check_least(config, attention_heads=1, kv_heads=1, head_size=1, intermediate=1)
    if config.attention_heads % config.kv_heads or config.head_size % 2:
        raise ModelError(
            f"attention_heads must be a multiple of kv_heads, and head_size even, got "
            f"{config.attention_heads}, {config.kv_heads} and {config.head_size}"
        )
    if not 1 < config.rotary_base < inf:
        raise ModelError(f"rotary_base must be larger than 1, got {config.rotary_base}")
