"""The trained parts of PPD: a few embeddings, in a folder as on a model hub.

config.json         what they are, and which model they belong to
model.safetensors   the embeddings, and what the extensions of chapter 4.4 add
acceptance.json     how often their guesses are right, by distance and rank
training.json       command, data, steps, loss curve, evaluation
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from paceline.errors import ModelError
from paceline.planning.acceptance import AcceptanceTable

__all__ = ["CONFIG", "BaseModel", "Head", "Mask", "PromptConfig", "PromptTokens"]

Mask = Literal["ensemble", "decoder", "encoder"]
"""Which embeddings see which, where a prompt token has several (PPD, section 4.4.3)."""

Head = Literal["shared", "small", "full"]
"""What turns the states of prompt tokens into scores (PPD, section 4.4.2): the model's own output
head; that one behind a trained residual block as in Medusa's heads; or a trained copy of it."""

_FORMAT = 1
_KIND = "prompt tokens"
CONFIG, _TENSORS, _ACCEPTANCE, _TRAINING = (
    "config.json",
    "model.safetensors",
    "acceptance.json",
    "training.json",
)


@dataclass(frozen=True)
class BaseModel:
    """The model that prompt tokens were trained for.

    fingerprint: of its weights, see `paceline.models.fingerprint`. name: for readers.
    """

    fingerprint: str
    name: str
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True)
class PromptConfig:
    """What is trained.

    prompt_tokens: how many there are, m; the i-th guesses the token i further on than the next.
    epts: embeddings per prompt token (ensemble prompt tokens, section 4.2).
    mask: which of them see which.
    learned_weights: their logits are weighted by trained numbers instead of averaged (4.4.4).
    prefix_tokens: trained keys and values per layer that each prompt token alone sees (4.4.1).
    head: the output head of prompt tokens (4.4.2).
    exits: the states of so many last layers are averaged for the guess (4.4.5).

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
        for name in ("prompt_tokens", "epts", "exits"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prefix_tokens < 0:
            raise ModelError(f"prefix_tokens must not be negative, got {self.prefix_tokens}")
        for name, known in (("mask", get_args(Mask)), ("head", get_args(Head))):
            if getattr(self, name) not in known:
                found = getattr(self, name)
                raise ModelError(f"{name} must be one of {', '.join(known)}, got {found!r}")

    @property
    def is_plain(self) -> bool:
        """Whether nothing but embeddings and the weights of their logits is trained, each group of
        embeddings on its own: what can be decoded with as nodes of a tree. The other extensions are
        there to be studied."""
        return (self.mask == "ensemble" or self.epts == 1) and not (
            self.prefix_tokens or self.head != "shared" or self.exits > 1
        )


@dataclass(frozen=True)
class PromptTokens:
    """Trained prompt tokens of one model.

    tensors: "embeddings" [prompt_tokens, epts, hidden], as the model takes them as `inputs_embeds`:
    what its embedding module yields, the factor included by which some models (Gemma) scale there;
    and what the configuration asks for besides: "ept_weights" [prompt_tokens, epts], "prefix_keys"
    and "prefix_values" [layers, prompt_tokens, prefix_tokens, KV heads, head size], "head.weight"
    and "head.bias" ([hidden, hidden] and [hidden] of the residual block, or [vocabulary, hidden] of
    the whole head).
    acceptance: measured on texts that were not trained on; None where that was not done yet.
    record: how they were made, JSON values.
    """

    config: PromptConfig
    base: BaseModel
    tensors: Mapping[str, torch.Tensor]
    acceptance: AcceptanceTable | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def embeddings(self) -> torch.Tensor:
        """[prompt_tokens, epts, hidden]."""
        return self.tensors["embeddings"]

    def check_base(self, fingerprint: str) -> None:
        """Raises ModelError where they belong to a model with other weights."""
        if fingerprint != self.base.fingerprint:
            raise ModelError(
                f"these prompt tokens were trained for {self.base.name} ({self.base.fingerprint}), "
                f"not for the model at hand ({fingerprint or 'of unknown weights'}): train some with "
                "'paceline train ppd'"
            )

    def save_pretrained(self, folder: Path) -> None:
        """Write the folder; raises ModelError where that is not possible."""
        config = {
            "format": _FORMAT,
            "kind": _KIND,
            "method": "ppd",
            "base_model": asdict(self.base),
            **asdict(self.config),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The configuration, without which there are no parts, goes first and comes last: a
            # process that is killed here leaves none, and never those of two trainings.
            (folder / CONFIG).unlink(missing_ok=True)
            (folder / _ACCEPTANCE).unlink(missing_ok=True)
            tensors = {name: part.contiguous().cpu() for name, part in self.tensors.items()}
            _replace(folder / _TENSORS, save(tensors))
            _replace(folder / _TRAINING, _json(self.record))
            if self.acceptance is not None:
                self.acceptance.save(folder / _ACCEPTANCE, dict(self.record.get("evaluation", {})))
            _replace(folder / CONFIG, _json(config))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot write prompt tokens to {folder}: {error}") from error

    @classmethod
    def from_pretrained(cls, folder: Path) -> PromptTokens:
        """Read what `save_pretrained` wrote.

        Raises ModelError, naming the file, where one is missing, damaged or of another kind.
        """
        config = _read_json(folder / CONFIG)
        try:
            if (config.pop("format"), config.pop("kind")) != (_FORMAT, _KIND):
                raise ValueError("it is of another format or kind")
            config.pop("method")
            base = BaseModel(**config.pop("base_model"))
            chosen = PromptConfig(**config)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / CONFIG} describes no prompt tokens ({error})") from error
        path = folder / _ACCEPTANCE
        return cls(
            chosen,
            base,
            _read_tensors(folder / _TENSORS, chosen, base),
            AcceptanceTable.load(path) if path.exists() else None,
            _read_json(folder / _TRAINING),
        )


def _read_tensors(path: Path, config: PromptConfig, base: BaseModel) -> dict[str, torch.Tensor]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the prompt tokens {path}: {error}") from error
    expected = (config.prompt_tokens, config.epts, base.hidden_size)
    found = tuple(tensors["embeddings"].shape) if "embeddings" in tensors else None
    if found != expected:
        raise ModelError(f"{path} is damaged: its embeddings are {found}, not {expected}")
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ModelError(f"{path} is damaged: it holds what are no numbers")
    return tensors


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(content), ensure_ascii=False, indent=2) + "\n").encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(content)
    draft.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged: it is no JSON object") from error
