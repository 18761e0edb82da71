"""The folder of a draft model, as on a model hub.

config.json         the smaller model's configuration
model.safetensors   its own layers, or updates to the base's, half precision; embeddings and output
                    head are the base's
draft.json          the base, the layers that were kept, sha256 of the weights
training.json       command, data, steps, loss curve, evaluation

A standalone folder also has the embeddings, and is opened like any model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paceline.errors import ModelError, readable
from paceline.json_files import described, has_record, json_bytes, read_json, recorded, replace_file

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_KIND = "draft model"
_CONFIG, _TENSORS, _TRAINING = "config.json", "model.safetensors", "training.json"
RECORD = "draft.json"


@dataclass(frozen=True)
class DraftRecord:
    """The content of draft.json.

    base, name: fingerprint of the base's weights (see `fingerprint`), and its name for readers.
    layers: of the base that were kept, ascending, from 0. vocabulary: how many tokens the draft can
    generate; 0 is all. shared: whether embeddings and output head are the base's, and not in this
    folder. parameters: count of the draft's own. weights_sha256: of model.safetensors; "" before it
    is written. rank: of the stored updates to the weights of the base's layers, see
    `paceline.models.low_rank`; 0 if the layers are stored whole.
    """

    base: str
    name: str
    layers: tuple[int, ...]
    vocabulary: int = 0
    shared: bool = True
    parameters: int = 0
    weights_sha256: str = ""
    rank: int = 0

    def check_base(self, fingerprint: str) -> None:
        """Raises ModelError if the draft belongs to a model with other weights."""
        if fingerprint != self.base:
            raise ModelError(
                f"this draft model belongs to {self.name} ({self.base}), not to this model "
                f"({fingerprint or 'unknown weights'}): train one with 'paceline train draft'"
            )


@dataclass(frozen=True)
class DraftParts:
    """A trained draft model, as its folder keeps it; its methods are those of `TrainedParts`.

    about: which model it drafts for, and with which layers. tensors: all that the folder holds, see
    `own_tensors`, or all of a standalone model; written as they are. record: how it was made, JSON
    values. config: of the smaller model; None if read from a folder. whole: base and tokenizer of a
    standalone draft.
    """

    about: DraftRecord
    tensors: Mapping[str, torch.Tensor]
    record: Mapping[str, Any]
    config: PreTrainedConfig | None = None
    whole: tuple[PreTrainedModel, PreTrainedTokenizerBase | None] | None = None

    kind: ClassVar[str] = "a draft model"

    @classmethod
    def found_in(cls, folder: Path) -> Self | None:
        """The draft in a folder; None if none is finished there. Raises ModelError if it is
        damaged, or the folder holds something else."""
        if not has_record(folder / RECORD, _CONFIG):
            return None
        about = read_draft_record(folder)
        return cls(about, _read_tensors(folder / _TENSORS, about), read_json(folder / _TRAINING))

    @property
    def token_ids(self) -> torch.Tensor | None:
        """[count] int64, ascending: tokens that can be guessed; None for all."""
        from paceline.models.draft_model import VOCABULARY

        found = self.tensors.get(VOCABULARY)
        return None if found is None else found.long()

    def fingerprint(self) -> str:
        """The sha256 of the weights."""
        return self.about.weights_sha256

    def check_base(self, fingerprint: str) -> None:
        """See `DraftRecord.check_base`."""
        self.about.check_base(fingerprint)

    def save_pretrained(self, folder: Path) -> None:
        """Write the folder; raises ModelError if that fails."""
        from safetensors.torch import save

        assert self.config is not None  # noqa: S101 - what was read is not written again
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.tensors.items()}
        content = save(tensors, {"format": "pt"})
        record = replace(self.about, weights_sha256=hashlib.sha256(content).hexdigest())
        base, tokenizer = self.whole or (None, None)
        with recorded(folder / RECORD, _KIND, asdict(record), f"the {_KIND}"):
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            if base is not None and base.generation_config is not None:
                base.generation_config.save_pretrained(folder)
            replace_file(folder / _TENSORS, content)
            replace_file(folder / _CONFIG, self.config.to_json_string(use_diff=False).encode())
            replace_file(folder / _TRAINING, json_bytes(self.record))


def is_shared_draft(folder: Path) -> bool:
    """Whether a folder holds a draft model that `open_draft` opens together with its base; any
    other is loaded like a model. Raises ModelError if its record is damaged."""
    return (folder / RECORD).is_file() and read_draft_record(folder).shared


def read_draft_record(folder: Path) -> DraftRecord:
    """The record that `DraftParts` wrote; raises ModelError if it is missing or damaged."""
    with described(folder / RECORD, _KIND, DraftParts.kind) as found:
        return DraftRecord(**{**found, "layers": tuple(found["layers"])})


def open_draft(folder: Path, base: PreTrainedModel, fingerprint: str) -> PreTrainedModel:
    """The draft model in a folder, on the embeddings and output head of its base, which are shared.

    base: the model that it drafts for, prepared or not. fingerprint: of its weights.

    Raises ModelError if there is no such draft, it has another base, or its files are damaged.
    """
    record = read_draft_record(folder)
    if not record.shared:
        raise ModelError(f"the draft model in {folder} does not need a base: load it as a model")
    record.check_base(fingerprint)
    from paceline.models.draft_model import VOCABULARY, assemble
    from paceline.models.low_rank import merged

    kept = read_json(folder / _CONFIG)
    if kept.get("model_type") != base.config.model_type:
        raise ModelError(f"{folder / _CONFIG} is damaged: its model type is not the base's")
    tensors = _read_tensors(folder / _TENSORS, record)
    if len(tensors.get(VOCABULARY, ())) != record.vocabulary:
        raise ModelError(f"{folder / _TENSORS} is damaged: it does not match {RECORD}")
    try:
        config = type(base.config).from_dict(kept)
    except Exception as error:  # a configuration class may raise anything about its values
        raise ModelError(f"{folder / _CONFIG} is damaged: {error}") from error
    config.name_or_path = str(folder)
    if record.rank:
        tensors = merged(base, record.layers, tensors)
    return assemble(base, config, tensors)


def _read_tensors(path: Path, record: DraftRecord) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    with readable(f"the draft model {path}", ModelError):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != record.weights_sha256:
        raise ModelError(
            f"the draft model {path} is damaged (its sha256 is not the one in {RECORD}): copy "
            "or train it again"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise ModelError(f"{path} contains no weights: {error}") from error
