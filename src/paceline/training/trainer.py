"""A training run, from the first batch to the best parts; it survives kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn

from paceline.errors import UsageError
from paceline.kernels.blocks import rounded_numbers
from paceline.training.batches import Batch, Batches
from paceline.training.checkpoint import load_checkpoint, save_checkpoint
from paceline.training.dataset import Text
from paceline.training.method import TrainedMethod
from paceline.training.precision import forward_in
from paceline.training.scorer import Scorer, Teacher
from paceline.training.settings import TrainerSettings
from paceline.training.tally import Tally

# A better loss is lower by at least this share; less is noise.
_BETTER = 1e-3
_BETAS = (0.9, 0.95)  # of AdamW
# What a checkpoint keeps besides tensors and the log.
_NUMBERS = ("step", "best_loss", "stale", "spent", "seconds", "recent", "places")

_T = TypeVar("_T")

OnStep = Callable[[int, float], None]
"""Called with every step and its loss."""


class Trainer:
    """Trains a method by its settings, a batch a step.

    precision: of products, see `forward_in`.

    step: steps taken. places: learned from in these, repeats included. recent: the losses since the
    last validation. log: what validations found, for `training.json`.
    best_loss: the lowest validation loss; best: its parts. stale: validations since then.
    spent: seconds by activity. seconds: of all processes together.
    """

    def __init__(self, method: TrainedMethod[Any], precision: str = "float32") -> None:
        self.method = method
        self.settings: TrainerSettings = method.settings
        self.precision = precision
        self.step = 0
        self.places = 0
        self.recent: list[float] = []
        self.log: list[dict[str, Any]] = []
        self.best_loss = inf
        self.best = method.tensors()
        self.stale = 0
        self.spent: dict[str, float] = {}
        self.seconds = 0.0
        base = method.base
        self._teacher = Teacher(base.head, base.token_ids, base.about.vocab_size, method.bits)
        groups: dict[float, list[nn.Parameter]] = {}
        for name, part in method.learning().items():
            groups.setdefault(method.relative_rate(name), []).append(part)
        self._optimizer = torch.optim.AdamW(
            [{"params": parts, "scale": scale} for scale, parts in groups.items()],
            betas=_BETAS,
            weight_decay=self.settings.weight_decay,
        )

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within it, matrices have the bits of those that guess, and gradients are those of the
        rounded ones (straight-through, arXiv 1308.3432)."""
        named = self.method.learning().items()
        parts = [part for name, part in named if self.method.may_round(name, part)]
        kept = [part.data for part in parts]
        try:
            if bits := self.method.bits:
                for part in parts:
                    part.data = rounded_numbers(part.data, bits)
            yield
        finally:
            for part, own in zip(parts, kept):
                part.data = own

    def loss(self, batch: Batch, tally: Tally | None = None) -> torch.Tensor:
        """The loss, a scalar. tally: counts the guesses, too. See `rounded`."""
        scorer = Scorer(batch, self._teacher, self.settings, tally)
        with forward_in(self.precision, batch.tokens.device):
            self.method.forward(batch, scorer)
        return scorer.loss

    @torch.no_grad()
    def measure(self, batches: Batches, texts: Sequence[Text]) -> tuple[Tally, float]:
        """Count all guesses on some texts; also returns the mean loss, by place."""
        tally, total, places = Tally(len(texts), self.settings.heads), 0.0, 0
        with self.rounded():
            for batch in batches.whole(texts):
                count = self.method.places(batch)
                total += float(self.loss(batch, tally)) * count
                places += count
        return tally, total / places

    def test(self, batches: Batches, texts: Sequence[Text]) -> dict[str, Tally]:
        """Count all guesses on the test split, by their name in the record: after right guesses,
        and, if the method can, after its own, as Chimera's program counts."""
        if self.method.own_guesses is None:
            return {"evaluation": self.measure(batches, texts)[0]}
        tallies = {}
        for name, own in {"evaluation": False, "evaluation_after_own_guesses": True}.items():
            self.method.own_guesses = own
            tallies[name], _ = self.measure(batches, texts)
        return tallies

    @property
    def finished(self) -> bool:
        """Whether all steps are taken, or the validation loss has stopped falling."""
        tired = 0 < self.settings.patience <= self.stale
        return self.step >= self.settings.steps or tired

    def learn(self, batch: Batch) -> float:
        """Take a step; returns the loss before it. Raises UsageError if that or its gradient is no
        number."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.step) * group["scale"]
        with self.rounded():
            with self.timed("forward"):
                loss = self.loss(batch)
            with self.timed("backward"):
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                found = float(loss.detach())
        self.step += 1
        with self.timed("optimizer"):
            norm = nn.utils.clip_grad_norm_(
                self.method.learning().values(), self.settings.clip or inf
            )
            # Before the parts, and so a checkpoint, are spoilt.
            self._check("loss", found)
            self._check("norm of the gradient", float(norm))
            self._optimizer.step()
        self.places += self.method.places(batch)
        self.recent.append(found)
        return found

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the time of the body as spent on `what`."""
        begin = perf_counter()
        yield
        self.spent[what] = self.spent.get(what, 0.0) + perf_counter() - begin

    def judge(self, held_back_loss: float) -> None:
        """Keep the current parts if they are the best so far. Raises UsageError for a loss that is
        no number."""
        self._check("held-back loss", held_back_loss)
        if held_back_loss < self.best_loss * (1 - _BETTER):
            self.best_loss, self.best, self.stale = held_back_loss, self.method.tensors(), 0
        else:
            self.stale += 1

    def validate(self, batches: Batches, judged: Sequence[Text]) -> None:
        """Judge the current parts by some texts, and log their loss beside that of the last
        steps."""
        tally, held_back = self.measure(batches, judged)
        self.judge(held_back)
        self.log.append(
            {
                "step": self.step,
                "loss": round(sum(self.recent) / len(self.recent), 5),
                "held_back_loss": round(held_back, 5),
                "top1": tally.top(1),
            }
        )
        self.recent = []

    def _check(self, what: str, loss: float) -> None:
        # Nothing is learned from here on, and the best parts may be those it began with.
        if not isfinite(loss):
            raise UsageError(
                f"the {what} of step {self.step} is {loss}: train with a smaller learning rate, in "
                "another folder"
            )

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors, and JSON values {"numbers", "log"}, from which `restore` continues exactly: those
        of the optimiser only if there is a step to come."""
        tensors = {f"now/{name}": part for name, part in self.method.tensors().items()}
        tensors |= {f"best/{name}": part for name, part in self.best.items()}
        coming = {} if self.finished else self.method.learning()
        for name, part in coming.items():
            for key, value in self._optimizer.state.get(part, {}).items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value)
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return tensors, deepcopy({"numbers": numbers, "log": self.log})

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; raises KeyError if something is missing."""
        parts = self.method.learning()
        self.method.load({name: tensors[f"now/{name}"] for name in parts})
        for name, part in parts.items():
            self.best[name] = tensors[f"best/{name}"].to(part.device, copy=True)
            if f"optimizer/step/{name}" in tensors:
                moments = {
                    key: tensors[f"optimizer/{key}/{name}"].to(part.device, copy=True)
                    for key in ("exp_avg", "exp_avg_sq")
                }
                # The optimiser keeps its step count on the host.
                step = tensors[f"optimizer/step/{name}"].clone()
                self._optimizer.state[part] = {"step": step, **moments}
        for name in _NUMBERS:
            setattr(self, name, values["numbers"][name])
        self.log = values["log"]


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
                trainer.validate(batches, judged)
        trainer.seconds = perf_counter() - begin
        # After the last step too: a folder whose parts are half written is known by its checkpoint.
        if trainer.step % settings.checkpoint_every == 0 or trainer.finished:
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
