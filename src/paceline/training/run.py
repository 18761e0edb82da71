"""One training run, from the first batch to the best parts; it survives kills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from paceline.training.batches import Batches
from paceline.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from paceline.training.dataset import Text
from paceline.training.folder import check_same_run
from paceline.training.method import Finished
from paceline.training.settings import TrainerSettings
from paceline.training.trainee import Trainee
from paceline.training.trainer import Trainer

__all__ = ["OnStep", "Outcome", "finished_parts", "run_training"]

OnStep = Callable[[int, float], None]
"""Called with every step and its loss."""

_Parts = TypeVar("_Parts", bound=Finished)


@dataclass(frozen=True)
class Outcome:
    """How a training went.

    seconds: spent on steps, in all processes together; spent: shares of them. places: learned
    from, repeats included. log: losses.
    """

    steps: int
    seconds: float
    log: list[dict[str, Any]]
    spent: dict[str, float]
    places: int

    def described(
        self,
        run: Mapping[str, Any],
        about: Mapping[str, Any],
        texts: Mapping[str, Any],
        evaluation: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The content of `training.json`.

        run: what was trained. about: command, machine, versions.
        texts: how many were learned from and evaluated on. evaluation: its result.
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


def finished_parts(folder: Path, kind: type[_Parts], wanted: Mapping[str, Any]) -> _Parts | None:
    """The parts of a run that finished in this folder, None if there are none.

    Raises UsageError if they are of another run, ModelError if they are damaged.
    """
    parts = kind.found_in(folder)
    if parts is not None:
        check_same_run(folder, parts.record.get("run", {}), wanted, f"{kind.kind} trained")
    return parts


def run_training(
    trainee: Trainee,
    settings: TrainerSettings,
    batches: Batches,
    judged: list[Text],
    folder: Path,
    run: Mapping[str, Any],
    on_step: OnStep = lambda step, loss: None,
) -> Outcome:
    """Train, from the latest checkpoint if there is one; `trainee` ends with the best parts.

    judged: texts of the validation split, which choose the best step.
    folder: held by the caller, see `held`.
    run: what is trained; a checkpoint of another one is refused.
    on_step: called after every step, and once after resuming from a checkpoint.

    Raises UsageError for a checkpoint that is damaged or another run's, and a folder that cannot
    be written.
    """
    trainer = Trainer(trainee, settings)
    training = _Training(trainer, batches, judged, folder, dict(run), on_step)
    training.go()
    trainee.load(trainer.best)
    seconds = training.seconds
    spent = {what: round(own / seconds, 3) for what, own in sorted(trainer.spent.items())}
    return Outcome(trainer.step, seconds, training.log, spent, training.places)


@dataclass
class _Training:
    """A run in progress. recent: the losses since the last validation."""

    trainer: Trainer
    batches: Batches
    judged: list[Text]
    folder: Path
    run: dict[str, Any]
    on_step: OnStep
    log: list[dict[str, Any]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0
    places: int = 0

    def go(self) -> None:
        """Continue from the latest checkpoint until the trainer has finished."""
        self._resume()
        trainer, settings = self.trainer, self.trainer.settings
        begin = perf_counter() - self.seconds
        batches = self.batches.train(trainer.step)
        while not trainer.finished:
            with trainer.timed("batches"):
                batch = next(batches)
            loss = trainer.learn(batch)
            self.places += trainer.model.places(batch)
            self.recent.append(loss)
            self.on_step(trainer.step, loss)
            if trainer.step % settings.validate_every == 0 or trainer.step == settings.steps:
                with trainer.timed("validation"):
                    self._judge()
            self.seconds = perf_counter() - begin
            if trainer.step % settings.checkpoint_every == 0:
                self._save()

    def _judge(self) -> None:
        """Measure the validation loss, and log it beside that of the last steps."""
        model = self.trainer.model
        with torch.no_grad():
            weighted = [
                (float(model.loss(batch)), model.places(batch))
                for batch in self.batches.whole(self.judged)
            ]
        held_back = sum(loss * n for loss, n in weighted) / sum(n for _, n in weighted)
        self.trainer.judge(held_back)
        self.log.append(
            {
                "step": self.trainer.step,
                "loss": round(sum(self.recent) / len(self.recent), 5),
                "held_back_loss": round(held_back, 5),
                **model.notes(),
            }
        )
        self.recent = []

    def _save(self) -> None:
        tensors, numbers = self.trainer.state()
        numbers |= {"seconds": self.seconds, "recent": self.recent, "places": self.places}
        save_checkpoint(self.folder, Checkpoint(tensors, numbers, self.run, self.log))

    def _resume(self) -> None:
        found = load_checkpoint(self.folder)
        if found is None:
            return
        check_same_run(self.folder, found.run, self.run, "a checkpoint of a training")
        self.trainer.restore(found.tensors, found.numbers)
        self.log, self.recent = found.log, found.numbers["recent"]
        self.seconds, self.places = found.numbers["seconds"], found.numbers["places"]
        self.on_step(self.trainer.step, self.recent[-1] if self.recent else 0.0)
