"""From a model and its answers to a folder with a draft model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.drafters.trained_parts import BaseModel
from paceline.errors import UsageError
from paceline.models.draft_folder import (
    RECORD,
    DraftRecord,
    read_draft_record,
    read_draft_training,
    save_draft,
)
from paceline.models.draft_model import head_tensors, name_of_head
from paceline.targets.support import check_supported
from paceline.training.checkpoint import forget_checkpoint
from paceline.training.course import Course
from paceline.training.data import TrainingData
from paceline.training.draft.cutting import cut
from paceline.training.draft.evaluation import measure_agreement
from paceline.training.draft.lessons import DraftLessons
from paceline.training.draft.recipe import DraftConfig, DraftRecipe
from paceline.training.draft.student import Student
from paceline.training.draft.teacher import Teacher
from paceline.training.examples import Example
from paceline.training.folder import check_same_run, held
from paceline.training.run import OnStep, describe_training, run_training
from paceline.training.texts import ReadTexts
from paceline.training.vocabulary import frequent_tokens

__all__ = ["DraftRun", "TrainedDraft", "in_half_precision", "train_draft"]

# Of the held-back texts, for the agreement at the end.
_EVALUATED_TEXTS = 200
_FEWEST_PLACES = 2


@dataclass(frozen=True)
class DraftRun:
    """What is trained, and how.

    base: the model. read: texts to learn from besides its answers.
    about: command, machine, versions: for readers.

    Raises UsageError for texts that count nothing.
    """

    config: DraftConfig
    recipe: DraftRecipe
    base: BaseModel
    read: ReadTexts = field(default_factory=ReadTexts)
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.read.files and not self.recipe.prompt_weight:
            raise UsageError(
                "texts without answers count what prompts count: give a --prompt-weight above 0, "
                "or leave out --texts"
            )

    def as_json(self, data: TrainingData, dtype: torch.dtype) -> dict[str, Any]:
        """What the result depends on, besides machine and versions."""
        described = describe_training(self.base, dtype, self.config, self.recipe, data)
        return {**described, "config": self.config.as_json(), "read": self.read.as_json()}


@dataclass(frozen=True)
class TrainedDraft:
    """A draft model in its folder: what it is, and how it was made (training.json)."""

    record: DraftRecord
    training: Mapping[str, Any]


def train_draft(
    model: PreTrainedModel,
    data: TrainingData,
    run: DraftRun,
    folder: Path,
    on_step: OnStep = lambda step, loss: None,
) -> TrainedDraft:
    """Cut a draft model out of `model`, train it, measure how often the two agree, and keep it in
    `folder`.

    model: as it was loaded, its layers not replaced; its parameters are frozen.
    folder: new, or with a checkpoint of the same run, which is gone on with, or with its result,
    which is handed back.
    on_step: hears of every step and its loss, and once of those that a checkpoint brings.

    Raises UsageError for layers or a vocabulary that the model does not have, data that is damaged
    or too little, a damaged checkpoint, and a folder of another run, or that cannot be written, or
    that another process is writing to; ModelError for a model that no draft can be made of.
    """
    check_supported(model)
    if model.dtype == torch.float16:
        raise UsageError("gradients vanish in float16: train in bfloat16 or float32")
    wanted = run.as_json(data, model.dtype)
    if (folder / RECORD).exists():
        done = TrainedDraft(read_draft_record(folder), read_draft_training(folder))
        check_same_run(folder, done.training.get("run", {}), wanted, "a draft model trained")
        return done
    recipe = run.recipe
    course = Course.of(data, 0, recipe, _FEWEST_PLACES)
    layers = run.config.layers or tuple(sorted({0, model.config.num_hidden_layers - 1}))
    learned = [*course.learned, *run.read.texts]
    vocabulary = _vocabulary(model, learned, run.config.vocabulary)
    student = Student(cut(model, layers, vocabulary), model, recipe.loss)
    with held(folder):
        mark = {"base": run.base.fingerprint, "dtype": str(model.dtype)}
        teacher = Teacher(model, vocabulary, recipe.top, recipe.prompt_weight > 0, folder, mark)
        lessons = DraftLessons(teacher, course, recipe, run.read.texts)
        outcome = run_training(student, recipe, lessons, folder, wanted, on_step)
        kept = in_half_precision(student.tensors())
        student.load(kept)  # what is measured is what is kept
        texts = course.evaluated[:_EVALUATED_TEXTS]
        evaluation = {
            "on": "answers that were held back",
            **measure_agreement(student, teacher, texts, recipe.batch),
        }
        counts = {
            "learned": len(course.learned),
            "read": len(run.read.texts),
            "held_back": len(texts),
        }
        training = outcome.record(wanted, run.about, data, counts, evaluation)
        trained = _save(folder, student, kept, model, run, layers, training)
        forget_checkpoint(folder)
        teacher.forget()
    return trained


def in_half_precision(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same in float16, or in bfloat16 where that is too narrow."""
    kept = {name: tensor.to(torch.float16) for name, tensor in tensors.items()}
    if all(bool(tensor.isfinite().all()) for tensor in kept.values()):
        return kept
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


def _vocabulary(
    model: PreTrainedModel, learned: Sequence[Example], count: int
) -> torch.Tensor | None:
    """Ids of the tokens that the draft can say, those that end a text among them; None: all."""
    if not count:
        return None
    ends = model.generation_config.eos_token_id if model.generation_config else None
    always = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return frequent_tokens(learned, count, model.config.vocab_size, always)


def _save(
    folder: Path,
    student: Student,
    kept: dict[str, torch.Tensor],
    base: PreTrainedModel,
    run: DraftRun,
    layers: tuple[int, ...],
    training: dict[str, Any],
) -> TrainedDraft:
    """Write the folder. kept: the trained tensors, rounded."""
    standalone, vocabulary = run.config.standalone, student.vocabulary
    own = sum(tensor.numel() for tensor in kept.values())
    tensors = dict(kept)
    if standalone:
        tensors = _whole(student, base, kept)
    elif vocabulary is not None:
        tensors |= {
            name: tensor.half() if tensor.is_floating_point() else tensor
            for name, tensor in head_tensors(base, vocabulary).items()
        }
    head = student.draft.get_submodule(name_of_head(base))
    training = training | {
        "parameters": {
            "own": own,
            "read_by_a_pass": own + sum(part.numel() for part in head.parameters()),
            "of_the_base": base.num_parameters(),
        },
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
    }
    config = copy.deepcopy(student.draft.config)
    config.dtype = next(iter(kept.values())).dtype
    config.architectures = [type(base).__name__]
    record = DraftRecord(
        base=run.base.fingerprint,
        name=run.base.name,
        layers=layers,
        vocabulary=0 if vocabulary is None else len(vocabulary),
        shared=not standalone,
        parameters=own,
    )
    return TrainedDraft(save_draft(folder, config, tensors, record, training), training)


def _whole(
    student: Student, base: PreTrainedModel, kept: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """All tensors of a draft that stands alone, embeddings included."""
    dtype = next(iter(kept.values())).dtype
    tied = student.draft.config.tie_word_embeddings
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in student.draft.state_dict().items()
        if not (tied and name == f"{name_of_head(base)}.weight")
    }
