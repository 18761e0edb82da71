"""What the commands share that train something on a model's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from paceline.cli import common
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.drafters.trained_parts import BaseModel
    from paceline.models import LoadedModel
    from paceline.training.data import TrainingData
    from paceline.training.order import PromptFile
    from paceline.training.run import OnStep

Made = TypeVar("Made")

WHAT, HOW = "What is trained", "How"
"""Panels of the options, in the help of a command."""


def option(flag: str, help_text: str, panel: str = HOW) -> Any:
    """An option of a training."""
    return typer.Option(flag, help=help_text, rich_help_panel=panel)


DataOption = Annotated[Path, typer.Option("--data", help="Folder made by 'paceline train data'.")]
StepsOption = Annotated[int, option("--steps", "Batches to learn from.")]
BatchOption = Annotated[int, option("--batch", "Texts per batch.")]
PointsOption = Annotated[int, option("--points", "Places per text that are learned from.")]
LongestOption = Annotated[int, option("--longest", "Most tokens of a text.")]
LossOption = Annotated[str, option("--loss", "distillation or labels.")]
DecayOption = Annotated[float, option("--decay", "Weight of a distance over the one before.")]
RateOption = Annotated[float, option("--learning-rate", "Of AdamW; falls to 0 as a cosine.")]
WarmUpOption = Annotated[float, option("--warm-up", "Share of the steps in which it rises.")]
HeldBackOption = Annotated[float, option("--held-back", "Share of texts to judge by.")]
EvaluateOption = Annotated[int, option("--evaluate-every", "Steps between two looks at them.")]
PatienceOption = Annotated[int, option("--patience", "Looks without progress to stop after.")]
CheckpointOption = Annotated[int, option("--checkpoint-every", "Steps.")]
TextsOption = Annotated[
    list[Path] | None,
    option("--texts", "JSONL file of prompts that are read without an answer; may be repeated."),
]
LicenceOption = Annotated[
    list[str] | None, option("--licence", "Of these texts: one for all files, or one for each.")
]


def picked(kind: Callable[..., Made], options: Mapping[str, Any]) -> Made:
    """A dataclass made of the options of a command that are named as its fields."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: options[name] for name in names if name in options})


@common.interruptible()
def text_files(texts: list[Path] | None, licences: list[str] | None) -> list[PromptFile]:
    """The files that --texts and --licence name; raises UsageError where they do not fit."""
    from paceline.training.order import read_prompt_files

    if licences and not texts:
        raise UsageError("--licence is that of texts: name some with --texts")
    return read_prompt_files(texts, licences or []) if texts else []


@common.interruptible()
def open_model(
    model: str, threads: int | None, device: str | None, dtype: str | None, blocks: bool = False
) -> LoadedModel:
    """Load a model as it is, with progress bars. blocks: see `load_causal_lm`."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    from paceline.models import RichProgress, load_causal_lm

    with RichProgress(model) as progress:
        return load_causal_lm(model, device=device, dtype=dtype, blocks=blocks, progress=progress)


def answers_of(folder: Path, loaded: LoadedModel) -> TrainingData:
    """The training data in a folder; raises UsageError where another model made it."""
    from paceline.training.data import TrainingData

    return TrainingData(folder, loaded.fingerprint)


def base_of(loaded: LoadedModel, name: str) -> BaseModel:
    """What trained parts say about their model."""
    from paceline.drafters.trained_parts import BaseModel

    sizes = loaded.model.config.get_text_config()
    return BaseModel(loaded.fingerprint, name, sizes.hidden_size, sizes.vocab_size)


def with_bar(train: Callable[[OnStep], Made], steps: int, out: Path) -> Made:
    """Run a training with a bar; Ctrl-C says how to go on."""
    with common.progress("steps") as bars:
        task = bars.add_task("", total=steps)

        def show(step: int, loss: float) -> None:
            bars.update(task, completed=step, description=f"{loss:.3f}")

        try:
            return train(show)
        except KeyboardInterrupt:
            common.note(f"interrupted: {out} keeps the latest checkpoint; repeat the command")
            raise
