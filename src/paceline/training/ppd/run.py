"""From a model and its answers to a folder of prompt tokens, in one run that survives kills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.drafters.prompt_tokens import CONFIG, BaseModel, PromptConfig, PromptTokens
from paceline.targets.support import check_supported
from paceline.training.data import TrainingData
from paceline.training.folder import check_same_run, held
from paceline.training.ppd.checkpoint import (
    Checkpoint,
    forget_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from paceline.training.ppd.evaluation import fixed_assignments, measure_accuracy
from paceline.training.ppd.examples import Example, assignments, examples, split
from paceline.training.ppd.learner import Learner, Recipe
from paceline.training.ppd.prompt_model import PromptModel, initial_embeddings
from paceline.training.ppd.teacher import Teacher

__all__ = ["Course", "TrainingRun", "train_prompt_tokens"]

# Of the held-back texts: for the loss on the way, and for the accuracy at the end.
_JUDGED_TEXTS, _JUDGED_POINTS = 32, 16
_EVALUATED_TEXTS, _EVALUATED_POINTS = 200, 64
_STARTING_TOKENS = 512


@dataclass(frozen=True)
class Course:
    """The texts of some training data: to learn from, and held back (one text is judged by and
    evaluated on where there is but one)."""

    learned: list[Example]
    held_back: list[Example]

    @classmethod
    def of(cls, data: TrainingData, prompt_tokens: int, recipe: Recipe) -> Course:
        """Raises UsageError for damaged shards, or too few answers that are long enough."""
        found = examples(data, recipe.longest, prompt_tokens, min(8, recipe.points))
        return cls(*split(found, recipe.held_back))

    @property
    def judged(self) -> list[Example]:
        """The held-back texts that decide which parts are the best."""
        return self.held_back[::2] if len(self.held_back) > 1 else self.held_back

    @property
    def evaluated(self) -> list[Example]:
        """The others, which decide on nothing: accuracy is measured on them."""
        return self.held_back[1::2] or self.held_back

    @property
    def starting_tokens(self) -> list[int]:
        """Tokens of the texts, all different: where embeddings begin."""
        tokens = (token for text in self.learned for token in text.tokens[text.first :])
        return list(dict.fromkeys(islice(tokens, _STARTING_TOKENS)))


@dataclass(frozen=True)
class TrainingRun:
    """What is trained, and how.

    base: the model. start: trained parts to begin with, as the second stage does (4.4.2), or None.
    about: command, machine, versions: for readers.
    """

    config: PromptConfig
    recipe: Recipe
    base: BaseModel
    start: PromptTokens | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def as_json(self, data: TrainingData, dtype: torch.dtype) -> dict[str, Any]:
        """What the result depends on, besides machine and versions."""
        shards = [shard.sha256 for shard in data.manifest.shards]
        return {
            "base": asdict(self.base),
            "dtype": str(dtype).removeprefix("torch."),
            "config": asdict(self.config),
            "recipe": self.recipe.as_json(),
            "data": {"run": data.manifest.run, "shards": shards},
            "start": None if self.start is None else self.start.record.get("run"),
        }


def train_prompt_tokens(
    model: PreTrainedModel,
    data: TrainingData,
    run: TrainingRun,
    folder: Path,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
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
    done = _finished(folder, wanted)
    if done is not None:
        return done
    course = Course.of(data, run.config.prompt_tokens, run.recipe)
    start = initial_embeddings(model, run.config, course.starting_tokens)
    prompts = PromptModel(model, run.config, start)
    if run.start is not None:
        prompts.load(run.start.tensors)
    with held(folder):
        training = _Training(
            Learner(prompts, run.recipe), Teacher(model), course, folder, wanted, on_step
        )
        training.go()
        parts = training.finish(run, data)
        parts.save_pretrained(folder)
        forget_checkpoint(folder)
    return parts


def _finished(folder: Path, wanted: dict[str, Any]) -> PromptTokens | None:
    """The parts of a run that came to its end in this folder, None where there are none."""
    if not (folder / CONFIG).exists():
        return None
    parts = PromptTokens.from_pretrained(folder)
    check_same_run(folder, parts.record.get("run", {}), wanted, "prompt tokens trained")
    return parts


@dataclass
class _Training:
    """A run, to its end. seconds: spent on steps, in all processes together. recent: the losses
    since the last look at the held-back texts."""

    learner: Learner
    teacher: Teacher
    course: Course
    folder: Path
    run: dict[str, Any]
    on_step: Callable[[int, float], None]
    log: list[dict[str, Any]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def go(self) -> None:
        """Go on from the latest checkpoint until the learner has finished."""
        self._resume()
        learner, recipe, distances = self.learner, self.learner.recipe, self._distances
        steps = assignments(
            self.course.learned, recipe.batch, recipe.points, distances, recipe.seed
        )
        begin = perf_counter() - self.seconds
        for assignment in islice(steps, learner.step, None):
            if learner.finished:
                break
            loss = learner.learn(self.teacher.read(assignment, distances))
            self.recent.append(loss)
            self.on_step(learner.step, loss)
            if learner.step % recipe.evaluate_every == 0 or learner.step == recipe.steps:
                self._judge()
            self.seconds = perf_counter() - begin
            if learner.step % recipe.checkpoint_every == 0:
                self._save()

    def finish(self, run: TrainingRun, data: TrainingData) -> PromptTokens:
        """The best parts, with their accuracy on texts that were held back."""
        self.learner.model.load(self.learner.best)
        texts = self.course.evaluated[:_EVALUATED_TEXTS]
        asked = fixed_assignments(texts, run.recipe.batch, _EVALUATED_POINTS, self._distances)
        (accuracy,) = measure_accuracy([self.learner.model], self.teacher, asked, self._distances)
        record = {
            "about": run.about,
            "run": self.run,
            "licences": data.manifest.licences,
            "texts": {"learned": len(self.course.learned), "held_back": len(texts)},
            "steps": self.learner.step,
            "seconds": round(self.seconds, 1),
            "loss_curve": self.log,
            "evaluation": {"on": "answers that were held back", **accuracy.as_json()},
        }
        return PromptTokens(
            run.config, run.base, self.learner.model.tensors(), accuracy.table, record
        )

    @property
    def _distances(self) -> int:
        return self.learner.model.config.prompt_tokens

    def _judge(self) -> None:
        """Look at the loss on held-back texts, and note it beside that of the last steps."""
        recipe = self.learner.recipe
        texts = self.course.judged[:_JUDGED_TEXTS]
        weighted = []
        for assignment in fixed_assignments(texts, recipe.batch, _JUDGED_POINTS, self._distances):
            lesson = self.teacher.read(assignment, self._distances)
            with torch.no_grad():
                weighted.append((float(self.learner.loss(lesson)), lesson.points.numel()))
        held_back = sum(loss * n for loss, n in weighted) / sum(n for _, n in weighted)
        self.learner.judge(held_back)
        self.log.append(
            {
                "step": self.learner.step,
                "loss": round(sum(self.recent) / len(self.recent), 5),
                "held_back_loss": round(held_back, 5),
            }
        )
        self.recent = []

    def _save(self) -> None:
        tensors, numbers = self.learner.state()
        numbers |= {"seconds": self.seconds, "recent": self.recent}
        save_checkpoint(self.folder, Checkpoint(tensors, numbers, self.run, self.log))

    def _resume(self) -> None:
        found = load_checkpoint(self.folder)
        if found is None:
            return
        check_same_run(self.folder, found.run, self.run, "a checkpoint of a training")
        self.learner.restore(found.tensors, found.numbers)
        self.log, self.recent = found.log, found.numbers["recent"]
        self.seconds = found.numbers["seconds"]
        self.on_step(self.learner.step, self.recent[-1] if self.recent else 0.0)
