"""`paceline train ppd`: prompt tokens for a model, from its own answers."""

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
    DecayOption,
    HeldBackOption,
    LongestOption,
    LossOption,
    PatienceOption,
    PointsOption,
    RateOption,
    StepsOption,
    answers_of,
    base_of,
    open_model,
    option,
    with_bar,
)

if TYPE_CHECKING:
    from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
    from paceline.models import LoadedModel
    from paceline.training.data import TrainingData
    from paceline.training.ppd.recipe import PromptRecipe
    from paceline.training.ppd.run import TrainingRun

PromptTokensOption = Annotated[int, option("--prompt-tokens", "How far ahead is guessed.", WHAT)]
EptsOption = Annotated[int, option("--epts", "Embeddings per prompt token.", WHAT)]
MaskOption = Annotated[str, option("--mask", "Their mask: ensemble, decoder, encoder.", WHAT)]
WeighOption = Annotated[
    bool, option("--learned-weights", "Weigh their guesses instead of averaging.", WHAT)
]
PrefixOption = Annotated[int, option("--prefix-tokens", "Trained keys and values per layer.", WHAT)]
HeadOption = Annotated[
    str, option("--head", "Output head: shared, small (a block before it), full.", WHAT)
]
ExitsOption = Annotated[int, option("--exits", "Last layers that are averaged.", WHAT)]
StartOption = Annotated[
    Path | None, option("--start", "Folder of prompt tokens to begin with.", WHAT)
]


def ppd(
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", help="Folder for the prompt tokens.")],
    model: common.ModelOption = common.DEFAULT_MODEL,
    prompt_tokens: PromptTokensOption = 3,
    epts: EptsOption = 1,
    mask: MaskOption = "ensemble",
    learned_weights: WeighOption = False,
    prefix_tokens: PrefixOption = 0,
    head: HeadOption = "shared",
    exits: ExitsOption = 1,
    start: StartOption = None,
    steps: StepsOption = 400,
    batch: BatchOption = 4,
    points: PointsOption = 32,
    longest: LongestOption = 512,
    loss: LossOption = "distillation",
    decay: DecayOption = 0.8,
    learning_rate: RateOption = 0.01,
    held_back: HeldBackOption = 0.05,
    patience: PatienceOption = 4,
    checkpoint_every: CheckpointOption = 25,
    seed: common.SeedOption = 0,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
) -> None:
    """Train prompt tokens for PPD: a few embeddings that let a model guess several tokens ahead.

    The model itself stays as it is. Killed at any moment, the same command goes on from its latest
    checkpoint. The folder is for 'paceline generate --method ppd:parts=FOLDER'.
    """
    config, recipe, first = _checked(
        {
            "prompt_tokens": prompt_tokens,
            "epts": epts,
            "mask": mask,
            "learned_weights": learned_weights,
            "prefix_tokens": prefix_tokens,
            "head": head,
            "exits": exits,
        },
        start,
        steps=steps,
        batch=batch,
        points=points,
        longest=longest,
        loss=loss,
        decay=decay,
        learning_rate=learning_rate,
        held_back=held_back,
        patience=patience,
        checkpoint_every=checkpoint_every,
        seed=seed,
    )
    with common.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    loaded = open_model(model, threads, device, dtype)
    texts = answers_of(data, loaded)
    _report(_train(loaded, texts, _run(loaded, model, config, recipe, first), out), out)


@common.interruptible()
def _checked(
    config: dict[str, Any], start: Path | None, **recipe: Any
) -> tuple[PromptConfig, PromptRecipe, PromptTokens | None]:
    from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
    from paceline.training.ppd.recipe import PromptRecipe

    first = None if start is None else PromptTokens.from_pretrained(start)
    return PromptConfig(**config), PromptRecipe(**recipe), first


def _run(
    loaded: LoadedModel,
    name: str,
    config: PromptConfig,
    recipe: PromptRecipe,
    first: PromptTokens | None,
) -> TrainingRun:
    from paceline.machine import describe_run
    from paceline.training.ppd.run import TrainingRun

    if first is not None:
        first.check_base(loaded.fingerprint)
    return TrainingRun(config, recipe, base_of(loaded, name), first, describe_run())


def _train(loaded: LoadedModel, texts: TrainingData, run: TrainingRun, out: Path) -> PromptTokens:
    from paceline.training.ppd.run import train_prompt_tokens

    return with_bar(
        lambda show: train_prompt_tokens(loaded.model, texts, run, out, show),
        run.recipe.steps,
        out,
    )


def _report(parts: PromptTokens, out: Path) -> None:
    found = parts.record["evaluation"]
    for distance in range(parts.config.prompt_tokens):
        shares = ", ".join(f"top-{k} {found[f'top{k}'][distance]:.1%}" for k in (1, 5, 10))
        common.note(f"distance {distance + 1}: {shares}")
    common.note(
        f"{out} holds {parts.embeddings.numel()} trained numbers after {parts.record['steps']} "
        f"steps in {parts.record['seconds'] / 60:.1f} minutes; use them with "
        f"--method ppd:parts={out}"
    )
