"""Trained parts of a drafter for one model, in a folder as on a model hub.

config.json         what they are, and which model they belong to
model.safetensors   the trained tensors
acceptance.json     how often their guesses are right, by distance and rank
training.json       command, data, steps, loss curve, evaluation
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from paceline.errors import ModelError
from paceline.json_files import described, has_record, json_bytes, read_json, recorded, replace_file
from paceline.planning.acceptance import AcceptanceTable
from paceline.trained_configs import check_least

CONFIG, TRAINING = "config.json", "training.json"
_TENSORS, _ACCEPTANCE = "model.safetensors", "acceptance.json"
FILES = (CONFIG, _TENSORS, _ACCEPTANCE, TRAINING)

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class BaseModel:
    """The model that parts were trained for.

    fingerprint: of its weights, see `paceline.models.fingerprint`. name: for readers.
    """

    fingerprint: str
    name: str
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True, eq=False)
class TrainedParts(Generic[ConfigT]):
    """Trained parts of one model; each method has a class of its own.

    config: what they are: a dataclass of JSON values.
    tensors: by name, possibly in half precision.
    acceptance: measured on held-out texts; None if not measured yet.
    record: how they were made, JSON values.

    kind: their name in messages and in the folder. method: that guesses with them. config_type: of
    `config`. needed: fields that no folder leaves to their defaults.
    """

    config: ConfigT
    base: BaseModel
    tensors: Mapping[str, torch.Tensor]
    acceptance: AcceptanceTable | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str]
    method: ClassVar[str]
    config_type: ClassVar[type]
    needed: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """Required tensors, with their shapes."""

    @property
    def token_ids(self) -> torch.Tensor | None:
        """[count] int64, ascending: tokens that can be guessed; None for all."""
        return None

    @property
    def promise(self) -> float:
        """See `Drafter.promise`: right guesses in a chain, on held-out texts."""
        return 0.0 if self.acceptance is None else self.acceptance.chain

    def check_usable(self) -> None:
        """Raises ModelError if they are intact, but not made for decoding."""

    def check_base(self, fingerprint: str) -> None:
        """Raises ModelError if they belong to a model with other weights."""
        if fingerprint != self.base.fingerprint:
            raise ModelError(
                f"these {self.kind} were trained for {self.base.name} ({self.base.fingerprint}), "
                f"not for this model ({fingerprint or 'unknown weights'}): train some "
                f"with 'paceline train {self.method}'"
            )

    def fingerprint(self) -> str:
        """Identifies model, configuration and tensors."""
        config = asdict(self.config)  # type: ignore[call-overload]
        digest = sha256(json_bytes({"base_model": self.base.fingerprint, **config}))
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save_pretrained(self, folder: Path) -> None:
        """Write the folder; raises ModelError if that fails."""
        config = asdict(self.config)  # type: ignore[call-overload]
        about = {"method": self.method, "base_model": asdict(self.base), **config}
        content = save({name: part.contiguous().cpu() for name, part in self.tensors.items()})
        with recorded(folder / CONFIG, self.kind, about):
            (folder / _ACCEPTANCE).unlink(missing_ok=True)
            replace_file(folder / _TENSORS, content)
            replace_file(folder / TRAINING, json_bytes(self.record))
            if self.acceptance is not None:
                self.acceptance.save(folder / _ACCEPTANCE, dict(self.record.get("evaluation", {})))

    @classmethod
    def found_in(cls, folder: Path) -> Self | None:
        """The parts in a folder; None if none are finished there. Raises as `from_pretrained`, and
        ModelError if the folder holds something else."""
        return cls.from_pretrained(folder) if has_record(folder / CONFIG, _TENSORS) else None

    @classmethod
    def from_pretrained(cls, folder: Path) -> Self:
        """Read what `save_pretrained` wrote. Raises ModelError, naming the file, if one is missing,
        damaged or of another kind."""
        with described(folder / CONFIG, cls.kind) as about:
            about.pop("method")
            base = BaseModel(**about.pop("base_model"))
            check_least(base, hidden_size=1, vocab_size=1)
            if missing := cls.needed - about.keys():
                raise KeyError(*sorted(missing))
            config: ConfigT = cls.config_type(**about)
        acceptance, path = folder / _ACCEPTANCE, folder / _TENSORS
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read the {cls.kind} {path}: {error}") from error
        parts = cls(
            config,
            base,
            tensors,
            AcceptanceTable.load(acceptance) if acceptance.exists() else None,
            read_json(folder / TRAINING),
        )
        parts.check_tensors(path)
        return parts

    def check_tensors(self, path: Path) -> None:
        """Raises ModelError, naming the file `path`, if tensors are not as required."""
        for name, expected in self.expected_shapes().items():
            if name not in self.tensors:
                raise ModelError(f"{path} is damaged: its {name} is missing")
            found = tuple(self.tensors[name].shape)
            if found != expected:
                raise ModelError(
                    f"{path} is damaged: the shape of its {name} is {found}, not {expected}"
                )
        # As 32 bits: torch does not look into numbers of eight.
        if not all(bool(tensor.float().isfinite().all()) for tensor in self.tensors.values()):
            raise ModelError(f"{path} is damaged: it contains NaN or infinite values")
