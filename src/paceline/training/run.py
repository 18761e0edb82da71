"""One training, from lessons to the best parts, in a run that survives kills.

with held(folder):
    outcome = run_training(trainee, recipe, lessons, folder, run, on_step)
    parts = …                       # made of the trainee, which holds the best ones
    parts.save_pretrained(folder)
    forget_checkpoint(folder)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import torch

from paceline.drafters.trained_parts import CONFIG, BaseModel, TrainedParts
from paceline.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from paceline.training.data import TrainingData
from paceline.training.folder import check_same_run
from paceline.training.learner import Learner, LessonT, Pace, Trainee
from paceline.training.recipe import Recipe

__all__ = ["Lessons", "OnStep", "Outcome", "describe_training", "finished_parts", "run_training"]

OnStep = Callable[[int, float], None]
"""Hears of every step and its loss."""

_Given = TypeVar("_Given", covariant=True)
_Parts = TypeVar("_Parts", bound=TrainedParts[Any])


class Lessons(Protocol[_Given]):
    """What is learned from, the same whenever it is asked."""

    def learned(self, first: int) -> Iterator[_Given]:
        """The lessons of step `first` and all that follow, without end."""
        ...

    def judged(self) -> Iterable[tuple[_Given, int]]:
        """Lessons on held-back texts, each with what it counts: the number of its places."""
        ...

    def places(self, lesson: Any) -> int:
        """That a lesson is learned from."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a training went.

    seconds: spent on steps, in all processes together; spent: shares of them. places: that were
    learned from, each as often as it was. log: losses.
    """

    steps: int
    seconds: float
    log: list[dict[str, Any]]
    spent: dict[str, float] = field(default_factory=dict)
    places: int = 0

    def record(
        self,
        run: Mapping[str, Any],
        about: Mapping[str, Any],
        data: TrainingData,
        texts: Mapping[str, Any],
        evaluation: Mapping[str, Any],
    ) -> dict[str, Any]:
        """See `described`, with the licences of the data."""
        found = self.described(run, about, texts, evaluation)
        return {**found, "licences": data.manifest.licences}

    def described(
        self,
        run: Mapping[str, Any],
        about: Mapping[str, Any],
        texts: Mapping[str, Any],
        evaluation: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What `training.json` says.

        run: what was trained. about: command, machine, versions.
        texts: how many were learned from and evaluated on. evaluation: what came of that.
        """
        return {
            "about": dict(about),
            "run": dict(run),
            "texts": dict(texts),
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "places": self.places,
            "speed": {
                "places_per_second": round(self.places / max(self.seconds, 1e-9), 1),
                "shares_of_time": self.spent,
            },
            "loss_curve": self.log,
            "evaluation": dict(evaluation),
        }


def describe_training(
    base: BaseModel, dtype: torch.dtype, config: Any, recipe: Recipe, data: TrainingData
) -> dict[str, Any]:
    """What the result of a training depends on, besides machine and versions, JSON values.

    dtype: of the base model. config: a dataclass, what is trained.
    """
    return {
        "base": asdict(base),
        "dtype": str(dtype).removeprefix("torch."),
        "config": asdict(config),
        "recipe": recipe.as_json(),
        "data": {
            "run": data.manifest.run,
            "shards": [shard.sha256 for shard in data.manifest.shards],
        },
    }


def finished_parts(folder: Path, kind: type[_Parts], wanted: Mapping[str, Any]) -> _Parts | None:
    """The parts of a run that came to its end in this folder, None where there are none.

    Raises UsageError where they are of another run, ModelError where they are damaged.
    """
    if not (folder / CONFIG).exists():
        return None
    parts = kind.from_pretrained(folder)
    check_same_run(folder, parts.record.get("run", {}), wanted, f"{kind.kind} trained")
    return parts


def run_training(
    trainee: Trainee[LessonT],
    recipe: Pace,
    lessons: Lessons[LessonT],
    folder: Path,
    run: Mapping[str, Any],
    on_step: OnStep = lambda step, loss: None,
) -> Outcome:
    """Train, from the latest checkpoint on where there is one; in the end `trainee` holds the best
    parts.

    folder: held by the caller, see `held`.
    run: what is trained, see `describe_training`; a checkpoint of another one is refused.
    on_step: hears of every step, and once of those that a checkpoint brings.

    Raises UsageError for a checkpoint that is damaged or another run's, and a folder that cannot
    be written.
    """
    training = _Training(Learner(trainee, recipe), lessons, folder, dict(run), on_step)
    training.go()
    trainee.load(training.learner.best)
    learner, seconds = training.learner, training.seconds
    spent = {what: round(own / seconds, 3) for what, own in sorted(learner.spent.items())}
    return Outcome(learner.step, seconds, training.log, spent, training.places)


@dataclass
class _Training(Generic[LessonT]):
    """A run, to its end. recent: the losses since the last look at the held-back texts."""

    learner: Learner[LessonT]
    lessons: Lessons[LessonT]
    folder: Path
    run: dict[str, Any]
    on_step: OnStep
    log: list[dict[str, Any]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0
    places: int = 0

    def go(self) -> None:
        """Go on from the latest checkpoint until the learner has finished."""
        self._resume()
        learner, recipe = self.learner, self.learner.recipe
        begin = perf_counter() - self.seconds
        lessons = self.lessons.learned(learner.step)
        while not learner.finished:
            with learner.timed("batches"):
                lesson = next(lessons)
            loss = learner.learn(lesson)
            self.places += self.lessons.places(lesson)
            self.recent.append(loss)
            self.on_step(learner.step, loss)
            if learner.step % recipe.validate_every == 0 or learner.step == recipe.steps:
                with learner.timed("validation"):
                    self._judge()
            self.seconds = perf_counter() - begin
            if learner.step % recipe.checkpoint_every == 0:
                self._save()

    def _judge(self) -> None:
        """Look at the loss on held-back texts, and note it beside that of the last steps."""
        with torch.no_grad():
            weighted = [
                (float(self.learner.model.loss(lesson)), count)
                for lesson, count in self.lessons.judged()
            ]
        held_back = sum(loss * n for loss, n in weighted) / sum(n for _, n in weighted)
        self.learner.judge(held_back)
        self.log.append(
            {
                "step": self.learner.step,
                "loss": round(sum(self.recent) / len(self.recent), 5),
                "held_back_loss": round(held_back, 5),
                **self.learner.model.notes(),
            }
        )
        self.recent = []

    def _save(self) -> None:
        tensors, numbers = self.learner.state()
        numbers |= {"seconds": self.seconds, "recent": self.recent, "places": self.places}
        save_checkpoint(self.folder, Checkpoint(tensors, numbers, self.run, self.log))

    def _resume(self) -> None:
        found = load_checkpoint(self.folder)
        if found is None:
            return
        check_same_run(self.folder, found.run, self.run, "a checkpoint of a training")
        self.learner.restore(found.tensors, found.numbers)
        self.log, self.recent = found.log, found.numbers["recent"]
        self.seconds, self.places = found.numbers["seconds"], found.numbers["places"]
        self.on_step(self.learner.step, self.recent[-1] if self.recent else 0.0)
