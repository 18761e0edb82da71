"""The trained parts of PPD: a few embeddings, and what the extensions of chapter 4.4 add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from paceline.drafters.head_configs import check_least
from paceline.drafters.trained_parts import TrainedParts
from paceline.errors import ModelError

__all__ = ["Head", "Mask", "PromptConfig", "PromptTokens"]

Mask = Literal["ensemble", "decoder", "encoder"]
"""Which embeddings see which, if a prompt token has several (PPD, section 4.4.3)."""

Head = Literal["shared", "small", "full"]
"""What turns the states of prompt tokens into scores (PPD, section 4.4.2): the model's own output
head, the same after a trained residual block as in Medusa's heads, or a trained copy of it."""


@dataclass(frozen=True)
class PromptConfig:
    """What is trained.

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
    mask: Mask = "ensemble"
    learned_weights: bool = False
    prefix_tokens: int = 0
    head: Head = "shared"
    exits: int = 1

    def __post_init__(self) -> None:
        check_least(self, 1, "prompt_tokens", "epts", "exits")
        check_least(self, 0, "prefix_tokens")
        for name, known in (("mask", get_args(Mask)), ("head", get_args(Head))):
            if getattr(self, name) not in known:
                found = getattr(self, name)
                raise ModelError(f"{name} must be one of {', '.join(known)}, got {found!r}")

    @property
    def is_plain(self) -> bool:
        """Whether only embeddings and the weights of their logits are trained, each group of
        embeddings on its own: only these can be used for decoding, as nodes of a tree. The other
        extensions are for study."""
        return (self.mask == "ensemble" or self.epts == 1) and not (
            self.prefix_tokens or self.head != "shared" or self.exits > 1
        )


@dataclass(frozen=True)
class PromptTokens(TrainedParts[PromptConfig]):
    """Trained prompt tokens of one model.

    tensors: "embeddings" [prompt_tokens, epts, hidden], in the form of the model's `inputs_embeds`,
    the output of its embedding module, including the factor by which some models (Gemma) scale it;
    and, if the configuration has them: "ept_weights" [prompt_tokens, epts], "prefix_keys" and
    "prefix_values" [layers, prompt_tokens, prefix_tokens, KV heads, head size], "head.weight" and
    "head.bias" ([hidden, hidden] and [hidden] of the residual block, or [vocabulary, hidden] of the
    whole head).
    """

    kind: ClassVar[str] = "prompt tokens"
    method: ClassVar[str] = "ppd"
    config_type: ClassVar[type] = PromptConfig

    @property
    def embeddings(self) -> torch.Tensor:
        """[prompt_tokens, epts, hidden]."""
        return self.tensors["embeddings"]

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TrainedParts`."""
        config = self.config
        return {"embeddings": (config.prompt_tokens, config.epts, self.base.hidden_size)}

    def check_usable(self) -> None:
        """Raises ModelError for extensions that decoding does not support."""
        if not self.config.is_plain:
            raise ModelError(
                "these prompt tokens use extensions that exist only for the study: decode with "
                "prompt tokens trained without them"
            )
