"""A method and its loss, and the steps in which it learns: optimiser, schedule, the best parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from time import perf_counter
from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError
from paceline.kernels.blocks import rounded_numbers
from paceline.training.batches import Batch
from paceline.training.method import TrainedMethod
from paceline.training.precision import forward_in
from paceline.training.scorer import Scorer, Teacher
from paceline.training.settings import TrainerSettings
from paceline.training.tally import Tally

# A better loss is lower by at least this share; less is noise.
_BETTER = 1e-3
_BETAS = (0.9, 0.95)  # of AdamW


@dataclass(eq=False)
class Trainee:
    """A method and its loss.

    texts: number in the validation split. precision: of products, see `forward_in`.
    """

    method: TrainedMethod[Any]
    teacher: Teacher
    settings: TrainerSettings
    texts: int
    precision: str = "float32"

    def __post_init__(self) -> None:
        self._tally = Tally(self.texts, self.settings.heads)

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Those that learn, in float32."""
        return self.method.learning().items()

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within it, matrices have the bits of those that guess, and gradients are those of the
        rounded ones (straight-through, arXiv 1308.3432)."""
        named = self.named_parameters()
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

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss, a scalar; without gradients, guesses are counted by text, too. See `rounded`."""
        tally = None if torch.is_grad_enabled() else self._tally
        return self._scored(batch, tally).loss

    def notes(self) -> dict[str, Any]:
        """Share of right first guesses by head, on what was judged since the last call."""
        found, self._tally = self._tally.top(1), Tally(self.texts, self.settings.heads)
        return {"top1": found}

    @torch.no_grad()
    def measure(self, batches: Iterator[Batch], texts: int) -> Tally:
        """Count all guesses on the batches of a split."""
        tally = Tally(texts, self.settings.heads)
        with self.rounded():
            for batch in batches:
                self._scored(batch, tally)
        return tally

    def _scored(self, batch: Batch, tally: Tally | None) -> Scorer:
        scorer = Scorer(batch, self.teacher, self.settings, tally)
        with forward_in(self.precision, batch.tokens.device):
            self.method.forward(batch, scorer)
        return scorer


class Trainer:
    """Trains `model` by `settings`, a batch a step.

    step: steps taken. best_loss: the lowest validation loss; best: its parts.
    stale: validations since then. spent: seconds by activity.
    """

    def __init__(self, model: Trainee, settings: TrainerSettings) -> None:
        self.model = model
        self.settings = settings
        self.step = 0
        self.best_loss = inf
        self.best = model.method.tensors()
        self.stale = 0
        self.spent: dict[str, float] = {}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, part in model.named_parameters():
            groups.setdefault(model.method.relative_rate(name), []).append(part)
        self._optimizer = torch.optim.AdamW(
            [{"params": parts, "scale": scale} for scale, parts in groups.items()],
            betas=_BETAS,
            weight_decay=settings.weight_decay,
        )

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
        with self.model.rounded():
            with self.timed("forward"):
                loss = self.model.loss(batch)
            with self.timed("backward"):
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                found = float(loss.detach())
        self.step += 1
        with self.timed("optimizer"):
            parts = [part for _, part in self.model.named_parameters()]
            norm = nn.utils.clip_grad_norm_(parts, self.settings.clip or inf)
            # Before the parts, and so a checkpoint, are spoilt.
            self._check("loss", found)
            self._check("norm of the gradient", float(norm))
            self._optimizer.step()
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
            self.best_loss, self.best, self.stale = held_back_loss, self.model.method.tensors(), 0
        else:
            self.stale += 1

    def _check(self, what: str, loss: float) -> None:
        # Nothing is learned from here on, and the best parts may be those it began with.
        if not isfinite(loss):
            raise UsageError(
                f"the {what} of step {self.step} is {loss}: train with a smaller learning rate, in "
                "another folder"
            )

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and numbers from which `restore` continues exactly."""
        tensors = {f"now/{name}": part for name, part in self.model.method.tensors().items()}
        tensors |= {f"best/{name}": part for name, part in self.best.items()}
        for name, part in self.model.named_parameters():
            for key, value in self._optimizer.state.get(part, {}).items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value)
        numbers = {"step": self.step, "best_loss": self.best_loss, "stale": self.stale}
        return tensors, numbers | {"spent": dict(self.spent)}

    def restore(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; raises KeyError if something is missing."""
        parts = dict(self.model.named_parameters())
        self.model.method.load({name: tensors[f"now/{name}"] for name in parts})
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
        self.step = int(numbers["step"])
        self.best_loss, self.stale = float(numbers["best_loss"]), int(numbers["stale"])
        self.spent = dict(numbers["spent"])
