"""`paceline train ppd`: prompt tokens for a model, from its own answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common

if TYPE_CHECKING:
    from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
    from paceline.models import LoadedModel
    from paceline.training.data import TrainingData
    from paceline.training.ppd.recipe import PromptRecipe
    from paceline.training.ppd.run import TrainingRun

_WHAT, _HOW = "What is trained", "How"


def _option(flag: str, help_text: str, panel: str = _HOW) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=panel)


PromptTokensOption = Annotated[int, _option("--prompt-tokens", "How far ahead is guessed.", _WHAT)]
EptsOption = Annotated[int, _option("--epts", "Embeddings per prompt token.", _WHAT)]
MaskOption = Annotated[str, _option("--mask", "Their mask: ensemble, decoder, encoder.", _WHAT)]
WeighOption = Annotated[
    bool, _option("--learned-weights", "Weigh their guesses instead of averaging.", _WHAT)
]
PrefixOption = Annotated[
    int, _option("--prefix-tokens", "Trained keys and values per layer.", _WHAT)
]
HeadOption = Annotated[
    str, _option("--head", "Output head: shared, small (a block before it), full.", _WHAT)
]
ExitsOption = Annotated[int, _option("--exits", "Last layers that are averaged.", _WHAT)]
StartOption = Annotated[
    Path | None, _option("--start", "Folder of prompt tokens to begin with.", _WHAT)
]
StepsOption = Annotated[int, _option("--steps", "Batches to learn from.")]
BatchOption = Annotated[int, _option("--batch", "Texts per batch.")]
PointsOption = Annotated[int, _option("--points", "Places per text that are learned from.")]
LongestOption = Annotated[int, _option("--longest", "Most tokens of a text.")]
LossOption = Annotated[str, _option("--loss", "distillation or labels.")]
DecayOption = Annotated[float, _option("--decay", "Weight of a distance over the one before.")]
RateOption = Annotated[float, _option("--learning-rate", "Of AdamW; falls to 0 as a cosine.")]
HeldBackOption = Annotated[float, _option("--held-back", "Share of texts to judge by.")]
PatienceOption = Annotated[int, _option("--patience", "Looks without progress to stop after.")]
CheckpointOption = Annotated[int, _option("--checkpoint-every", "Steps.")]


def ppd(
    data: Annotated[Path, typer.Option("--data", help="Folder made by 'paceline train data'.")],
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
    loaded = _open(model, threads, device, dtype)
    texts = _data(data, loaded)
    _report(_train(loaded, texts, _run(loaded, model, config, recipe, first), out), out)


@common.interruptible()
def _checked(
    config: dict[str, Any], start: Path | None, **recipe: Any
) -> tuple[PromptConfig, PromptRecipe, PromptTokens | None]:
    from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
    from paceline.training.ppd.recipe import PromptRecipe

    first = None if start is None else PromptTokens.from_pretrained(start)
    return PromptConfig(**config), PromptRecipe(**recipe), first


@common.interruptible()
def _open(model: str, threads: int | None, device: str | None, dtype: str | None) -> LoadedModel:
    """Load a model as it is, with progress bars."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    from paceline.models import RichProgress, load_causal_lm

    with RichProgress(model) as progress:
        return load_causal_lm(model, device=device, dtype=dtype, progress=progress)


def _data(folder: Path, loaded: LoadedModel) -> TrainingData:
    from paceline.training.data import TrainingData

    return TrainingData(folder, loaded.fingerprint)


def _run(
    loaded: LoadedModel,
    name: str,
    config: PromptConfig,
    recipe: PromptRecipe,
    first: PromptTokens | None,
) -> TrainingRun:
    from paceline.drafters.trained_parts import BaseModel
    from paceline.machine import describe_run
    from paceline.training.ppd.run import TrainingRun

    if first is not None:
        first.check_base(loaded.fingerprint)
    sizes = loaded.model.config.get_text_config()
    base = BaseModel(loaded.fingerprint, name, sizes.hidden_size, sizes.vocab_size)
    return TrainingRun(config, recipe, base, first, describe_run())


def _train(loaded: LoadedModel, texts: TrainingData, run: TrainingRun, out: Path) -> PromptTokens:
    """Run with a bar; Ctrl-C says how to go on."""
    from paceline.training.ppd.run import train_prompt_tokens

    with common.progress("steps") as bars:
        task = bars.add_task("", total=run.recipe.steps)

        def show(step: int, loss: float) -> None:
            bars.update(task, completed=step, description=f"{loss:.3f}")

        try:
            return train_prompt_tokens(loaded.model, texts, run, out, show)
        except KeyboardInterrupt:
            common.note(f"interrupted: {out} keeps the latest checkpoint; repeat the command")
            raise


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
