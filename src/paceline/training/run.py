"""One training run, from the first batch to the best parts; it survives kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from paceline.training.batches import Batches
from paceline.training.checkpoint import load_checkpoint, save_checkpoint
from paceline.training.dataset import Text
from paceline.training.trainer import Trainer

_T = TypeVar("_T")

OnStep = Callable[[int, float], None]
"""Called with every step and its loss."""


def run_training(
    trainer: Trainer,
    batches: Batches,
    judged: list[Text],
    folder: Path,
    run: Mapping[str, Any],
    on_step: OnStep,
) -> dict[str, Any]:
    """Train, from the latest checkpoint if there is one; the method ends with the best parts.

    judged: texts of the validation split, which choose the best step. folder: held by the caller.
    run: what is trained; a checkpoint of another one is refused. on_step: called after every step,
    and once after resuming.

    Returns how it went, for `training.json`: seconds of all processes together, and places learned
    from, repeats included.

    Raises UsageError for a checkpoint that is damaged or another run's, and a folder that cannot
    be written.
    """
    settings = trainer.settings
    found = load_checkpoint(folder, run)
    if found is not None:
        trainer.restore(*found)
        on_step(trainer.step, trainer.recent[-1] if trainer.recent else 0.0)
    if settings.start and not trainer.step:  # perhaps no step is better
        trainer.judge(trainer.measure(batches, judged)[1])
    begin = perf_counter() - trainer.seconds
    coming = batches.train(trainer.step)
    if batches.device.type == "cuda":
        coming = one_ahead(coming)
    while not trainer.finished:
        with trainer.timed("batches"):
            batch = next(coming)
        loss = trainer.learn(batch)
        on_step(trainer.step, loss)
        if trainer.step % settings.validate_every == 0 or trainer.step == settings.steps:
            with trainer.timed("validation"):
                _validate(trainer, batches, judged)
        trainer.seconds = perf_counter() - begin
        if trainer.step % settings.checkpoint_every == 0:
            save_checkpoint(folder, *trainer.state(), run)
    trainer.method.load(trainer.best)
    seconds = trainer.seconds
    return {
        "steps": trainer.step,
        "seconds": round(seconds, 1),
        "places": trainer.places,
        "speed": {
            "places_per_second": round(trainer.places / max(seconds, 1e-9), 1),
            "shares_of_time": {
                what: round(own / seconds, 3) for what, own in sorted(trainer.spent.items())
            },
        },
        "loss_curve": trainer.log,
    }


def _validate(trainer: Trainer, batches: Batches, judged: list[Text]) -> None:
    """Measure the validation loss, and log it beside that of the last steps."""
    tally, held_back = trainer.measure(batches, judged)
    trainer.judge(held_back)
    trainer.log.append(
        {
            "step": trainer.step,
            "loss": round(sum(trainer.recent) / len(trainer.recent), 5),
            "held_back_loss": round(held_back, 5),
            "top1": tally.top(1),
        }
    )
    trainer.recent = []


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
