"""From a model and its answers to a folder of Medusa heads, or of a draft model of Chimera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.medusa_heads import MedusaHeads, OutputHead
from paceline.drafters.trained_heads import (
    ChimeraConfig,
    ChimeraParts,
    MedusaConfig,
    MedusaParts,
)
from paceline.drafters.trained_parts import BaseModel
from paceline.errors import UsageError
from paceline.targets.hidden_states import output_head
from paceline.targets.support import check_supported
from paceline.training.checkpoint import forget_checkpoint
from paceline.training.course import Course
from paceline.training.data import TrainingData
from paceline.training.examples import Example
from paceline.training.folder import held
from paceline.training.heads.bottom import TransformerBottom
from paceline.training.heads.evaluation import measure
from paceline.training.heads.lessons import HeadLessons
from paceline.training.heads.reader import StateReader
from paceline.training.heads.recipe import ChimeraRecipe, HeadRecipe
from paceline.training.heads.trainees import ChimeraTrainee, HeadTrainee, MedusaTrainee
from paceline.training.run import OnStep, describe_training, finished_parts, run_training
from paceline.training.texts import ReadTexts
from paceline.training.vocabulary import frequent_ngrams, frequent_tokens

__all__ = ["HeadRun", "Saved", "train_chimera", "train_medusa"]

Saved = Literal["float16", "bfloat16", "float32"]
"""The precision that weights are kept in."""

# Of the held-back texts, for the accuracy at the end.
_EVALUATED_TEXTS = 200
_COMMON_NGRAMS = 4096

ConfigT = TypeVar("ConfigT", MedusaConfig, ChimeraConfig)
RecipeT = TypeVar("RecipeT", bound=HeadRecipe)
PartsT = TypeVar("PartsT", MedusaParts, ChimeraParts)


@dataclass(frozen=True)
class HeadRun(Generic[ConfigT, RecipeT]):
    """What is trained, and how.

    base: the model. saved: see `Saved`; float16 gives way to bfloat16 where it is too narrow.
    read: texts to learn from besides its answers.
    about: command, machine, versions: for readers.

    Raises UsageError for another precision.
    """

    config: ConfigT
    recipe: RecipeT
    base: BaseModel
    saved: Saved = "float16"
    read: ReadTexts = field(default_factory=ReadTexts)
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.saved not in get_args(Saved):
            known = ", ".join(get_args(Saved))
            raise UsageError(f"weights are kept in one of {known}, got {self.saved!r}")

    def as_json(self, data: TrainingData, dtype: torch.dtype) -> dict[str, Any]:
        """What the result depends on, besides machine and versions."""
        described = describe_training(self.base, dtype, self.config, self.recipe, data)
        return {**described, "saved": self.saved, "read": self.read.as_json()}


def train_medusa(
    model: PreTrainedModel,
    data: TrainingData,
    run: HeadRun[MedusaConfig, HeadRecipe],
    folder: Path,
    cache: Path | None = None,
    on_step: OnStep = lambda step, loss: None,
) -> MedusaParts:
    """Train Medusa heads, measure how often they guess right, and keep them in `folder`.

    model: as it was loaded, its layers not replaced; its parameters are frozen.
    folder: new, or with a checkpoint of the same run, which is gone on with, or with its result,
    which is handed back.
    cache: see `StateReader`. on_step: see `run_training`.

    Raises UsageError for data that is damaged or too little, a vocabulary larger than the model's,
    a damaged checkpoint, and a folder of another run, or that cannot be written, or that another
    process is writing to; ModelError for a model that could not be decoded with.
    """
    done = _finished(model, data, run, folder, MedusaParts)
    if done is not None:
        return done
    classroom = _Classroom.of(model, data, run, cache)
    heads = MedusaHeads(run.config, classroom.head, classroom.token_ids)
    trainee = MedusaTrainee(heads, run.recipe, model)
    return _train(trainee, classroom, data, run, folder, on_step, MedusaParts)


def train_chimera(
    model: PreTrainedModel,
    data: TrainingData,
    run: HeadRun[ChimeraConfig, ChimeraRecipe],
    folder: Path,
    cache: Path | None = None,
    on_step: OnStep = lambda step, loss: None,
) -> ChimeraParts:
    """The same for a draft model of Chimera; see `train_medusa`, and for what is measured
    `ChimeraTrainee.guesses`."""
    config, recipe = run.config, run.recipe
    if recipe.own_guesses and config.bottom != "ngram":
        raise UsageError(
            "a transformer at the bottom learns behind the tokens of texts only: leave own guesses "
            "out"
        )
    done = _finished(model, data, run, folder, ChimeraParts)
    if done is not None:
        return done
    classroom = _Classroom.of(model, data, run, cache)
    # Random weights depend on nothing but the seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        draft = ChimeraModel(
            config,
            classroom.head,
            model.get_input_embeddings(),
            classroom.token_ids,
            _bottom(model, config),
        )
    trainee = ChimeraTrainee(draft, recipe, model)
    return _train(trainee, classroom, data, run, folder, on_step, ChimeraParts)


def _bottom(model: PreTrainedModel, config: ChimeraConfig) -> nn.Module | None:
    if config.bottom == "ngram":
        return None
    return TransformerBottom(model, trained=config.bottom == "transformer finetune")


def _finished(
    model: PreTrainedModel,
    data: TrainingData,
    run: HeadRun[Any, Any],
    folder: Path,
    kind: type[PartsT],
) -> PartsT | None:
    """What is there already, after a look at the model."""
    check_supported(model)
    if model.dtype == torch.float16:
        raise UsageError("gradients vanish in float16: train in bfloat16 or float32")
    return finished_parts(folder, kind, run.as_json(data, model.dtype))


@dataclass(frozen=True)
class _Classroom:
    """What heads of any kind learn from.

    head: the model's output head for the tokens that may be guessed, `token_ids`, or for all.
    """

    lessons: HeadLessons
    head: OutputHead
    token_ids: torch.Tensor | None

    @classmethod
    def of(
        cls, model: PreTrainedModel, data: TrainingData, run: HeadRun[Any, Any], cache: Path | None
    ) -> _Classroom:
        recipe, config = run.recipe, run.config
        course = Course.of(data, config.heads, recipe, min(8, recipe.points))
        ids = None
        if config.vocabulary:
            known = [*course.learned, *run.read.texts]
            ids = frequent_tokens(known, config.vocabulary, run.base.vocab_size, [])
        # What was made for inference alone cannot be differentiated through: clones can.
        weight, bias = output_head(model, ids)
        lessons = HeadLessons(
            StateReader(model, run.base, cache), course, config.heads, recipe, ids, run.read.texts
        )
        return cls(lessons, (weight.clone(), bias.clone()), ids)

    @property
    def evaluated(self) -> list[Example]:
        """Texts for the accuracy."""
        return self.lessons.course.evaluated[:_EVALUATED_TEXTS]


def _train(
    trainee: HeadTrainee[Any, Any],
    classroom: _Classroom,
    data: TrainingData,
    run: HeadRun[Any, Any],
    folder: Path,
    on_step: OnStep,
    kind: type[PartsT],
) -> PartsT:
    wanted, lessons = run.as_json(data, trainee.model.dtype), classroom.lessons
    with held(folder):
        outcome = run_training(trainee, run.recipe, lessons, folder, wanted, on_step)
        kept = _rounded(trainee.tensors(), run.saved)
        trainee.load(kept)  # what is measured is what is kept
        table, found = measure(trainee, lessons, classroom.evaluated)
        evaluation = {"on": "answers that were held back", **found}
        counts = {
            "learned": len(lessons.course.learned),
            "read": len(run.read.texts),
            "held_back": len(classroom.evaluated),
        }
        record = outcome.record(wanted, run.about, data, counts, evaluation)
        if classroom.token_ids is not None:
            kept["token_ids"] = classroom.token_ids
        if isinstance(run.config, ChimeraConfig):
            learned, order = lessons.course.learned, run.config.order
            kept["common_ngrams"] = frequent_ngrams(learned, order, _COMMON_NGRAMS)
        parts = kind(run.config, run.base, kept, table, record)
        parts.save_pretrained(folder)
        forget_checkpoint(folder)
    return parts


def _rounded(tensors: Mapping[str, torch.Tensor], saved: Saved) -> dict[str, torch.Tensor]:
    kept = {name: part.to(getattr(torch, saved)) for name, part in tensors.items()}
    if saved == "float16" and not all(bool(part.isfinite().all()) for part in kept.values()):
        return {name: part.to(torch.bfloat16) for name, part in tensors.items()}
    return kept
