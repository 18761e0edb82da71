"""`paceline train draft`: a draft model for a model, from its own layers and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.train.shared import (
    WHAT,
    BatchOption,
    CheckpointOption,
    DataOption,
    EvaluateOption,
    HeldBackOption,
    LicenceOption,
    LongestOption,
    LossOption,
    PatienceOption,
    PointsOption,
    RateOption,
    StepsOption,
    TextsOption,
    WarmUpOption,
    answers_of,
    base_of,
    open_model,
    option,
    text_files,
    with_bar,
)
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.models import LoadedModel
    from paceline.training.draft.recipe import DraftConfig, DraftRecipe
    from paceline.training.draft.run import TrainedDraft
    from paceline.training.order import PromptFile

LayersOption = Annotated[
    str, option("--layers", "Layers that are kept, e.g. 0,10,20,29; the first and the last.", WHAT)
]
VocabularyOption = Annotated[
    int, option("--vocabulary", "Most frequent tokens that it can say; 0 for all.", WHAT)
]
StandaloneOption = Annotated[
    bool, option("--standalone/--share", "Keep the embeddings in the folder, too.", WHAT)
]
TopOption = Annotated[int, option("--top", "Likeliest tokens that are learned one by one.")]
PromptsOption = Annotated[
    float, option("--prompt-weight", "What a place in a prompt counts, 0 to 1.")
]


def draft(
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", help="Folder for the draft model.")],
    model: common.ModelOption = common.DEFAULT_MODEL,
    layers: LayersOption = "",
    vocabulary: VocabularyOption = 0,
    standalone: StandaloneOption = False,
    texts: TextsOption = None,
    licence: LicenceOption = None,
    steps: StepsOption = 600,
    batch: BatchOption = 4,
    points: PointsOption = 256,
    longest: LongestOption = 384,
    loss: LossOption = "distillation",
    top: TopOption = 64,
    prompt_weight: PromptsOption = 0.5,
    learning_rate: RateOption = 1e-3,
    warm_up: WarmUpOption = 0.05,
    held_back: HeldBackOption = 0.1,
    evaluate_every: EvaluateOption = 50,
    patience: PatienceOption = 4,
    checkpoint_every: CheckpointOption = 50,
    seed: common.SeedOption = 0,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
) -> None:
    """Train a draft model: some layers of a model, on its embeddings and output head.

    The model itself stays as it is. Killed at any moment, the same command goes on from its latest
    checkpoint. The folder is for 'paceline generate --method speculative:draft=FOLDER'.
    """
    config, recipe = _checked(
        {"layers": _layers(layers), "vocabulary": vocabulary, "standalone": standalone},
        steps=steps,
        batch=batch,
        points=points,
        longest=longest,
        loss=loss,
        top=top,
        prompt_weight=prompt_weight,
        learning_rate=learning_rate,
        warm_up=warm_up,
        held_back=held_back,
        evaluate_every=evaluate_every,
        patience=patience,
        checkpoint_every=checkpoint_every,
        seed=seed,
    )
    files = text_files(texts, licence)
    with common.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    loaded = open_model(model, threads, device, dtype)
    _report(_train(loaded, model, data, files, config, recipe, out), out)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(",")) if text else ()
    except ValueError as error:
        raise UsageError(f"layers are numbers with commas between, got {text!r}") from error


@common.interruptible()
def _checked(config: dict[str, Any], **recipe: Any) -> tuple[DraftConfig, DraftRecipe]:
    from paceline.training.draft.recipe import DraftConfig, DraftRecipe

    return DraftConfig(**config), DraftRecipe(**recipe)


def _train(
    loaded: LoadedModel,
    name: str,
    data: Path,
    files: list[PromptFile],
    config: DraftConfig,
    recipe: DraftRecipe,
    out: Path,
) -> TrainedDraft:
    from paceline.machine import describe_run
    from paceline.training.draft.run import DraftRun, train_draft
    from paceline.training.texts import ReadTexts

    answers = answers_of(data, loaded)
    read = ReadTexts.of(files, loaded.tokenizer, recipe)
    run = DraftRun(config, recipe, base_of(loaded, name), read, describe_run())
    trained = with_bar(
        lambda show: train_draft(loaded.model, answers, run, out, show), recipe.steps, out
    )
    if config.standalone:
        with common.writing(out):
            loaded.tokenizer.save_pretrained(out)
            loaded.model.generation_config.save_pretrained(out)
    return trained


def _report(trained: TrainedDraft, out: Path) -> None:
    training = trained.training
    found, sizes = training["evaluation"], training["parameters"]
    lengths = ", ".join(
        f"{tokens:.2f} with {length} drafted"
        for length, tokens in found["acceptance_length"].items()
    )
    common.note(
        f"says what the model says: top-1 {found['top1']:.1%}, top-5 {found['top5']:.1%}; tokens "
        f"per pass of the model: {lengths}"
    )
    common.note(
        f"{out} holds {sizes['own'] / 1e6:.1f} million trained numbers in "
        f"{training['bytes'] / 1e6:.1f} MB after {training['steps']} steps in "
        f"{training['seconds'] / 60:.1f} minutes; a pass reads "
        f"{sizes['read_by_a_pass'] / sizes['of_the_base']:.1%} of what one of the model reads"
    )
