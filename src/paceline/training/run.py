"""One training run, from the first batch to the best parts; it survives kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from paceline.training.batches import Batches
from paceline.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from paceline.training.dataset import Text
from paceline.training.trainer import Trainee, Trainer

_T = TypeVar("_T")

OnStep = Callable[[int, float], None]
"""Called with every step and its loss."""


def run_training(
    trainee: Trainee,
    batches: Batches,
    judged: list[Text],
    folder: Path,
    run: Mapping[str, Any],
    on_step: OnStep = lambda step, loss: None,
) -> dict[str, Any]:
    """Train, from the latest checkpoint if there is one; `trainee` ends with the best parts.

    judged: texts of the validation split, which choose the best step. folder: held by the caller.
    run: what is trained; a checkpoint of another one is refused. on_step: called after every step,
    and once after resuming.

    Returns how it went, for `training.json`: seconds of all processes together, and places learned
    from, repeats included.

    Raises UsageError for a checkpoint that is damaged or another run's, and a folder that cannot
    be written.
    """
    trainer = Trainer(trainee, trainee.settings)
    training = _Training(trainer, batches, judged, folder, run, on_step)
    training.go()
    trainee.method.load(trainer.best)
    seconds = training.seconds
    spent = {what: round(own / seconds, 3) for what, own in sorted(trainer.spent.items())}
    return {
        "steps": trainer.step,
        "seconds": round(seconds, 1),
        "places": training.places,
        "speed": {
            "places_per_second": round(training.places / max(seconds, 1e-9), 1),
            "shares_of_time": spent,
        },
        "loss_curve": training.log,
    }


@dataclass
class _Training:
    """A run in progress. recent: the losses since the last validation."""

    trainer: Trainer
    batches: Batches
    judged: list[Text]
    folder: Path
    run: Mapping[str, Any]
    on_step: OnStep
    log: list[dict[str, Any]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0
    places: int = 0

    def go(self) -> None:
        """Continue from the latest checkpoint until the trainer has finished."""
        trainer, settings = self.trainer, self.trainer.settings
        found = load_checkpoint(self.folder, self.run)
        if found is not None:
            trainer.restore(found.tensors, found.numbers)
            self.log, self.recent = found.log, found.numbers["recent"]
            self.seconds, self.places = found.numbers["seconds"], found.numbers["places"]
            self.on_step(trainer.step, self.recent[-1] if self.recent else 0.0)
        if settings.start and not trainer.step:  # perhaps no step is better
            trainer.judge(self._held_back_loss())
            trainer.model.notes()  # counts start anew with the steps
        begin = perf_counter() - self.seconds
        batches = self.batches.train(trainer.step)
        if self.batches.device.type == "cuda":
            batches = one_ahead(batches)
        while not trainer.finished:
            with trainer.timed("batches"):
                batch = next(batches)
            loss = trainer.learn(batch)
            self.places += trainer.model.method.places(batch)
            self.recent.append(loss)
            self.on_step(trainer.step, loss)
            if trainer.step % settings.validate_every == 0 or trainer.step == settings.steps:
                with trainer.timed("validation"):
                    self._judge()
            self.seconds = perf_counter() - begin
            if trainer.step % settings.checkpoint_every == 0:
                tensors, numbers = trainer.state()
                numbers |= {"seconds": self.seconds, "recent": self.recent, "places": self.places}
                save_checkpoint(self.folder, Checkpoint(tensors, numbers, self.run, self.log))

    def _held_back_loss(self) -> float:
        model, total, places = self.trainer.model, 0.0, 0
        with torch.no_grad(), model.rounded():
            for batch in self.batches.whole(self.judged):
                count = model.method.places(batch)
                total += float(model.loss(batch)) * count
                places += count
        return total / places

    def _judge(self) -> None:
        """Measure the validation loss, and log it beside that of the last steps."""
        held_back = self._held_back_loss()
        self.trainer.judge(held_back)
        self.log.append(
            {
                "step": self.trainer.step,
                "loss": round(sum(self.recent) / len(self.recent), 5),
                "held_back_loss": round(held_back, 5),
                **self.trainer.model.notes(),
            }
        )
        self.recent = []


def one_ahead(batches: Iterator[_T]) -> Iterator[_T]:
    """Make the next batch in another thread meanwhile: a GPU learns faster than they are made.

    An error is raised in place of the batch that could not be made.
    """
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, batches)
        while True:
            batch = following.result()
            following = thread.submit(next, batches)
            yield batch
