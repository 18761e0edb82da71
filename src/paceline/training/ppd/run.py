"""From a model and its answers to a folder of prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
from paceline.drafters.trained_parts import BaseModel
from paceline.targets.support import check_supported
from paceline.training.checkpoint import forget_checkpoint
from paceline.training.course import Course
from paceline.training.data import TrainingData
from paceline.training.examples import fixed_assignments
from paceline.training.folder import held
from paceline.training.ppd.evaluation import measure_accuracy
from paceline.training.ppd.prompt_model import PromptModel, initial_embeddings
from paceline.training.ppd.recipe import PromptRecipe
from paceline.training.ppd.teacher import Teacher
from paceline.training.ppd.trainee import PromptLessons, PromptTrainee
from paceline.training.run import OnStep, describe_training, finished_parts, run_training

__all__ = ["TrainingRun", "prompt_course", "starting_tokens", "train_prompt_tokens"]

# Of the held-back texts, for the accuracy at the end.
_EVALUATED_TEXTS, _EVALUATED_POINTS = 200, 64
_STARTING_TOKENS = 512


@dataclass(frozen=True)
class TrainingRun:
    """What is trained, and how.

    base: the model. start: trained parts to begin with, as the second stage does (4.4.2), or None.
    about: command, machine, versions: for readers.
    """

    config: PromptConfig
    recipe: PromptRecipe
    base: BaseModel
    start: PromptTokens | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def as_json(self, data: TrainingData, dtype: torch.dtype) -> dict[str, Any]:
        """What the result depends on, besides machine and versions."""
        return {
            **describe_training(self.base, dtype, self.config, self.recipe, data),
            "start": None if self.start is None else self.start.record.get("run"),
        }


def prompt_course(data: TrainingData, prompt_tokens: int, recipe: PromptRecipe) -> Course:
    """The texts with room for prompt tokens; raises UsageError as `Course.of` does."""
    return Course.of(data, prompt_tokens, recipe, min(8, recipe.points))


def starting_tokens(course: Course) -> list[int]:
    """Tokens of the texts, all different: where embeddings begin."""
    tokens = (token for text in course.learned for token in text.tokens[text.first :])
    return list(dict.fromkeys(islice(tokens, _STARTING_TOKENS)))


def train_prompt_tokens(
    model: PreTrainedModel,
    data: TrainingData,
    run: TrainingRun,
    folder: Path,
    on_step: OnStep = lambda step, loss: None,
) -> PromptTokens:
    """Train prompt tokens, measure how often they guess right, and keep them in `folder`.

    model: as it was loaded, its layers not replaced; its parameters are frozen.
    folder: new, or with a checkpoint of the same run, which is gone on with, or with its result,
    which is handed back.
    on_step: hears of every step and its loss, and once of those that a checkpoint brings.

    Raises UsageError for data that is damaged or too little, a damaged checkpoint, and a folder of
    another run, or that cannot be written, or that another process is writing to; ModelError for a
    model that could not be decoded with.
    """
    check_supported(model)
    wanted = run.as_json(data, model.dtype)
    done = finished_parts(folder, PromptTokens, wanted)
    if done is not None:
        return done
    config, recipe = run.config, run.recipe
    course = prompt_course(data, config.prompt_tokens, recipe)
    prompts = PromptModel(model, config, initial_embeddings(model, config, starting_tokens(course)))
    if run.start is not None:
        prompts.load(run.start.tensors)
    teacher = Teacher(model)
    lessons = PromptLessons(teacher, course, config.prompt_tokens, recipe)
    with held(folder):
        outcome = run_training(
            PromptTrainee(prompts, recipe), recipe, lessons, folder, wanted, on_step
        )
        texts = course.evaluated[:_EVALUATED_TEXTS]
        asked = fixed_assignments(texts, recipe.batch, _EVALUATED_POINTS, config.prompt_tokens)
        (accuracy,) = measure_accuracy([prompts], teacher, asked, config.prompt_tokens)
        evaluation = {"on": "answers that were held back", **accuracy.as_json()}
        counts = {"learned": len(course.learned), "held_back": len(texts)}
        record = outcome.record(wanted, run.about, data, counts, evaluation)
        parts = PromptTokens(config, run.base, prompts.tensors(), accuracy.table, record)
        parts.save_pretrained(folder)
        forget_checkpoint(folder)
    return parts
