"""What a trained method is: a module, its guesses, the folder they are saved to, and the parts of
an earlier training that it starts from.

A method is its settings, a row of `paceline.training.methods.TRAINED`, and the class they name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.drafters.eight_bits import in_floats
from paceline.drafters.parts import shipped_for
from paceline.drafters.trained_heads import HeadParts
from paceline.drafters.trained_parts import BaseModel, TrainedParts
from paceline.errors import UsageError
from paceline.models.draft_folder import DraftParts
from paceline.planning.acceptance import AcceptanceTable
from paceline.training.batches import Batch
from paceline.training.dataset import Text
from paceline.training.scorer import Scorer
from paceline.training.settings import PACKAGED, TrainerSettings

SettingsT = TypeVar("SettingsT", bound=TrainerSettings)

Finished: TypeAlias = TrainedParts[Any] | DraftParts
"""What was trained, as its folder keeps it."""

Tensors = Mapping[str, torch.Tensor]
Record = Mapping[str, Any]
"""What `training.json` holds."""


@dataclass(frozen=True)
class Base:
    """The frozen target.

    model: as loaded. about: what parts record about it.
    token_ids: [outputs] int64, tokens that can be guessed; None for all.
    head: weights [outputs, hidden] and biases [outputs] of its output head for these.
    train: texts that are learned from. tokenizer: the target's, if it was loaded.
    """

    model: PreTrainedModel
    about: BaseModel
    token_ids: torch.Tensor | None
    head: tuple[torch.Tensor, torch.Tensor]
    train: Sequence[Text] = ()
    tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def embed(self) -> nn.Module:
        """Its input embeddings: token ids int64 [...] -> [..., hidden]."""
        found: nn.Module = self.model.get_input_embeddings()
        return found


class TrainedMethod(ABC, Generic[SettingsT]):
    """A method while it learns.

    module: its parameters in float32; those that require gradients learn.
    bits: of the matrices that it guesses with while it learns; 0: they are not rounded.
    own_guesses: whether its later guesses follow its own earlier ones instead of the text; None if
    it cannot be switched, else the test is done both ways.

    Parts: what `parts` makes: one of `TrainedParts`, unless the method has a `parts` of its own.
    """

    Parts: ClassVar[type[Finished]]

    module: nn.Module
    bits: int = 0
    own_guesses: bool | None = None

    @abstractmethod
    def __init__(self, base: Base, settings: SettingsT) -> None:
        """Make the module; torch's generator is already seeded. Raises UsageError or ModelError if
        the method does not fit the model."""
        self.base, self.settings = base, settings

    @classmethod
    def check(
        cls, settings: SettingsT, model: PreTrainedModel, first: Finished | None = None
    ) -> None:
        """Raise UsageError or ModelError if settings do not fit a model, whose weights may be in
        blocks, or the parts to start from; called before it reads any text."""

    @abstractmethod
    def forward(self, batch: Batch, scorer: Scorer) -> None:
        """Guess after all places of a batch, and pass the guesses to the scorer."""

    def parts(self, tensors: Tensors, table: AcceptanceTable, record: Record) -> Finished:
        """Make what the folder holds.

        tensors: from `tensors`, rounded to the saved precision. table: how often guesses were
        right. record: content of `training.json`.
        """
        kind: Any = self.Parts
        ids = {} if self.base.token_ids is None else {"token_ids": self.base.token_ids}
        made: Finished = kind(
            self.module.config, self.base.about, {**tensors, **ids}, table, record
        )
        return made

    def may_round(self, name: str, part: nn.Parameter) -> bool:
        """Whether a parameter holds matrices that are rounded for drafts."""
        return name.endswith("weight") and part.dim() > 1

    def places(self, batch: Batch) -> int:
        """How many places of a batch are learned from."""
        return int(batch.place.sum())

    def relative_rate(self, name: str) -> float:
        """Learning rate of a parameter, relative to the settings'."""
        return 1.0

    def learning(self) -> dict[str, nn.Parameter]:
        """What learns, by name, in float32."""
        named = self.module.named_parameters()
        return {name: part for name, part in named if part.requires_grad}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Detached copies of what learns, by name."""
        return {name: part.detach().clone() for name, part in self.learning().items()}

    def start_from(self, parts: Finished) -> None:
        """Begin with trained parts. Tensors that this method lacks are ignored; those missing there
        stay as they are. Raises UsageError, naming the tensor or setting, if one has another shape,
        or heads are of another kind."""
        own, found = self.tensors(), in_floats(parts.tensors)
        for name in own.keys() & found.keys():
            if own[name].shape != found[name].shape:
                raise UsageError(
                    f"the {name} to start from has the shape {tuple(found[name].shape)}, not "
                    f"{tuple(own[name].shape)}: train with the options in its training.json"
                )
        if isinstance(parts, HeadParts):  # they may read or end in something else
            config: Any = self.module.config
            for name, here in asdict(config).items():
                there = getattr(parts.config, name)
                if name != "steps" and there != here:  # EAGLE's steps share all tensors
                    raise UsageError(
                        f"the parts to start from have {name} {there}, not {here}: train with the "
                        "options in its training.json"
                    )
        self.load(own | found)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load what `tensors` returned, in any precision."""
        with torch.no_grad():
            for name, part in self.learning().items():
                part.copy_(tensors[name])


def method_of(settings: TrainerSettings) -> type[TrainedMethod[Any]]:
    """The method that learns with these settings."""
    found: type[TrainedMethod[Any]] = resolve_name(settings.method)
    return found


def parts_in(folder: Path, settings: TrainerSettings) -> Finished:
    """The parts in a folder; raises UsageError if there are none, ModelError if damaged."""
    found = method_of(settings).Parts.found_in(folder)
    if found is None:
        raise UsageError(
            f"{folder} holds nothing that 'paceline train {settings.name}' has finished: name "
            "another folder, or leave out --start"
        )
    return found


def first_parts(settings: TrainerSettings, fingerprint: str) -> Finished | None:
    """What the settings' `start` names for the model with these weights; None if it is "".

    Raises UsageError if there are no such parts, or they guess another number of tokens, are of
    another kind, were trained on texts that the settings hold back, or were chosen by texts of the
    test split; ModelError for damaged or another model's.
    """
    if not settings.start:
        return None
    packaged = settings.start == PACKAGED
    folder = shipped_for(settings.name, fingerprint) if packaged else Path(settings.start)
    if folder is None:
        raise UsageError(
            f"no parts of '{settings.name}' for this model come with paceline: leave out --start"
        )
    found = parts_in(folder, settings)
    found.check_base(fingerprint)
    _check_options(found, settings)
    return found


def _check_options(parts: Finished, settings: TrainerSettings) -> None:
    """See `first_parts`."""
    if parts.token_ids is not None and len(parts.token_ids) != settings.vocabulary:
        count = len(parts.token_ids)
        raise UsageError(
            f"the parts to start from guess {count} tokens, not "
            f"{settings.vocabulary or 'all'}: train with --vocabulary {count}"
        )
    known = parts.record.get("run", {}).get("settings", {})
    for name in sorted({*settings.what_is_trained} - settings.may_differ):
        if name in known and known[name] != getattr(settings, name):
            raise UsageError(
                f"the parts to start from have {name} {known[name]!r}, not "
                f"{getattr(settings, name)!r}: train with the options in their training.json"
            )
    test, validation = known.get("test"), known.get("validation")
    if test is None or validation is None:
        return
    # Both splits are counted from the same end.
    if settings.test > test or settings.test + settings.validation > test + validation + 1e-9:
        raise UsageError(
            "the parts to start from have learned from texts that are to be held back: train "
            f"with --test {test} --validation {validation}"
        )
