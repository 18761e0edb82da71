"""`paceline train medusa`: decoding heads for a model, from its own answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.train import heads as of_heads
from paceline.cli.train import shared

if TYPE_CHECKING:
    from paceline.drafters.trained_heads import MedusaConfig, MedusaParts
    from paceline.models import LoadedModel
    from paceline.training.heads.recipe import HeadRecipe
    from paceline.training.order import PromptFile


def medusa(
    data: shared.DataOption,
    out: Annotated[Path, typer.Option("--out", help="Folder for the heads.")],
    model: common.ModelOption = common.DEFAULT_MODEL,
    heads: of_heads.HeadsOption = 4,
    layers: of_heads.LayersOption = 1,
    form: of_heads.FormOption = "compact",
    vocabulary: of_heads.VocabularyOption = 0,
    steps: shared.StepsOption = 1000,
    batch: shared.BatchOption = 4,
    points: shared.PointsOption = 32,
    longest: shared.LongestOption = 512,
    loss: shared.LossOption = "labels",
    decay: shared.DecayOption = 0.8,
    prompts: of_heads.InPromptsOption = False,
    learning_rate: shared.RateOption = 1e-3,
    warm_up: shared.WarmUpOption = 0.05,
    held_back: shared.HeldBackOption = 0.05,
    evaluate_every: shared.EvaluateOption = 50,
    patience: shared.PatienceOption = 4,
    checkpoint_every: shared.CheckpointOption = 50,
    texts: shared.TextsOption = None,
    licence: shared.LicenceOption = None,
    cache: of_heads.CacheOption = None,
    save_dtype: of_heads.SavedOption = "float16",
    seed: common.SeedOption = 0,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
) -> None:
    """Train Medusa-1 heads: each guesses a token further ahead from the model's last state.

    The model itself stays as it is. Killed at any moment, the same command goes on from its latest
    checkpoint. The folder is for 'paceline generate --method medusa:parts=FOLDER'.
    """
    config, recipe = _checked(locals())
    files = shared.text_files(texts, licence)
    with common.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    loaded = shared.open_model(model, threads, device, dtype)
    parts = _train(loaded, model, data, files, config, recipe, out, cache, save_dtype)
    of_heads.report(parts, out)


@common.interruptible()
def _checked(options: dict[str, Any]) -> tuple[MedusaConfig, HeadRecipe]:
    from paceline.drafters.trained_heads import MedusaConfig
    from paceline.training.heads.recipe import HeadRecipe

    return shared.picked(MedusaConfig, options), shared.picked(HeadRecipe, options)


def _train(
    loaded: LoadedModel,
    name: str,
    data: Path,
    files: list[PromptFile],
    config: MedusaConfig,
    recipe: HeadRecipe,
    out: Path,
    cache: Path | None,
    saved: Any,
) -> MedusaParts:
    from paceline.machine import describe_run
    from paceline.training.heads.run import HeadRun, train_medusa

    answers = shared.answers_of(data, loaded)
    read = of_heads.read_texts(files, loaded, config.heads, recipe)
    run = HeadRun(config, recipe, shared.base_of(loaded, name), saved, read, describe_run())
    return shared.with_bar(
        lambda show: train_medusa(loaded.model, answers, run, out, cache, show), recipe.steps, out
    )
