"""`paceline train chimera`: the draft model of Chimera for a model, from its own answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.train import heads as of_heads
from paceline.cli.train import shared
from paceline.cli.train.shared import WHAT, option

if TYPE_CHECKING:
    from paceline.drafters.trained_heads import ChimeraConfig, ChimeraParts
    from paceline.models import LoadedModel
    from paceline.training.heads.recipe import ChimeraRecipe
    from paceline.training.order import PromptFile

OrderOption = Annotated[int, option("--order", "Tokens that the n-gram encoder sees.", WHAT)]
ResidualOption = Annotated[
    bool, option("--residual/--no-residual", "Heads see the model's last state, too.", WHAT)
]
BottomOption = Annotated[
    str,
    option("--bottom", "ngram; for the study: transformer frozen, transformer finetune.", WHAT),
]
IntermediateOption = Annotated[
    int, option("--intermediate", "Of the context encoder; 0: as in the model's layers.", WHAT)
]
StateWeightOption = Annotated[
    float, option("--state-weight", "Of the distance from the model's states in the loss.")
]
OwnGuessesOption = Annotated[
    bool, option("--own-guesses", "Learn behind own guesses instead of the text.")
]


def chimera(
    data: shared.DataOption,
    out: Annotated[Path, typer.Option("--out", help="Folder for the draft model.")],
    model: common.ModelOption = common.DEFAULT_MODEL,
    heads: of_heads.HeadsOption = 3,
    order: OrderOption = 3,
    form: of_heads.FormOption = "compact",
    vocabulary: of_heads.VocabularyOption = 0,
    layers: of_heads.LayersOption = 0,
    residual: ResidualOption = True,
    bottom: BottomOption = "ngram",
    width: IntermediateOption = 0,
    steps: shared.StepsOption = 1000,
    batch: shared.BatchOption = 4,
    points: shared.PointsOption = 32,
    longest: shared.LongestOption = 512,
    loss: shared.LossOption = "labels",
    decay: shared.DecayOption = 1.0,
    state_weight: StateWeightOption = 1.0,
    own_guesses: OwnGuessesOption = False,
    prompts: of_heads.InPromptsOption = False,
    learning_rate: shared.RateOption = 5e-4,
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
    """Train Chimera's draft model: n-gram encoder, full context encoder and residual heads.

    The model itself stays as it is. Killed at any moment, the same command goes on from its latest
    checkpoint. The folder is for 'paceline generate --method chimera:parts=FOLDER'.
    """
    config, recipe = _checked(locals())
    files = shared.text_files(texts, licence)
    with common.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    loaded = shared.open_model(model, threads, device, dtype)
    parts = _train(loaded, model, data, files, config, width, recipe, out, cache, save_dtype)
    of_heads.report(parts, out)


@common.interruptible()
def _checked(options: dict[str, Any]) -> tuple[ChimeraConfig, ChimeraRecipe]:
    from paceline.drafters.trained_heads import ChimeraConfig
    from paceline.training.heads.recipe import ChimeraRecipe

    return shared.picked(ChimeraConfig, options), shared.picked(ChimeraRecipe, options)


def _train(
    loaded: LoadedModel,
    name: str,
    data: Path,
    files: list[PromptFile],
    config: ChimeraConfig,
    width: int,
    recipe: ChimeraRecipe,
    out: Path,
    cache: Path | None,
    saved: Any,
) -> ChimeraParts:
    from paceline.machine import describe_run
    from paceline.training.heads.run import HeadRun, train_chimera
    from paceline.training.heads.sizes import sized_like

    answers = shared.answers_of(data, loaded)
    read = of_heads.read_texts(files, loaded, config.heads, recipe)
    config = sized_like(config, loaded.model.config, width)
    run = HeadRun(config, recipe, shared.base_of(loaded, name), saved, read, describe_run())
    return shared.with_bar(
        lambda show: train_chimera(loaded.model, answers, run, out, cache, show), recipe.steps, out
    )
