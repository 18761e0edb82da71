"""What the commands that train on a model's own answers share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.errors import UsageError
from paceline.training.settings import HOW

if TYPE_CHECKING:
    from paceline.drafters.trained_parts import BaseModel
    from paceline.models import LoadedModel
    from paceline.training.data import TrainingData
    from paceline.training.order import PromptFile


def option(flag: str, help_text: str, panel: str = HOW) -> Any:
    """An option of a training command."""
    return typer.Option(flag, help=help_text, rich_help_panel=panel)


TextsOption = Annotated[
    list[Path] | None,
    option("--texts", "JSONL file of prompts to read without answers; may be repeated."),
]
LicenceOption = Annotated[
    list[str] | None, option("--licence", "Licence of these texts: one for all files or one each.")
]


@common.interruptible()
def text_files(texts: list[Path] | None, licences: list[str] | None) -> list[PromptFile]:
    """The files that --texts and --licence name; raises UsageError if they do not match."""
    from paceline.training.order import read_prompt_files

    if licences and not texts:
        raise UsageError("--licence applies to the files of --texts: name some with --texts")
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
    """The training data in a folder; raises UsageError if another model made it."""
    from paceline.training.data import TrainingData

    return TrainingData(folder, loaded.fingerprint)


def base_of(loaded: LoadedModel, name: str) -> BaseModel:
    """What trained parts record about their model."""
    from paceline.drafters.trained_parts import BaseModel

    sizes = loaded.model.config.get_text_config()
    return BaseModel(loaded.fingerprint, name, sizes.hidden_size, sizes.vocab_size)
