"""What the commands share that train heads on a model's last states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import common
from paceline.cli.train.shared import WHAT, option

if TYPE_CHECKING:
    from paceline.drafters.trained_heads import ChimeraParts, MedusaParts
    from paceline.models import LoadedModel
    from paceline.training.heads.recipe import HeadRecipe
    from paceline.training.order import PromptFile
    from paceline.training.texts import ReadTexts

HeadsOption = Annotated[int, option("--heads", "How far ahead is guessed.", WHAT)]
FormOption = Annotated[
    str, option("--form", "compact (ends in the model's own head) or full.", WHAT)
]
VocabularyOption = Annotated[
    int, option("--vocabulary", "Most frequent tokens that are guessed; 0 for all.", WHAT)
]
LayersOption = Annotated[int, option("--layers", "Residual blocks of a head.", WHAT)]
InPromptsOption = Annotated[bool, option("--in-prompts", "Learn from places in prompts, too.")]
CacheOption = Annotated[
    Path | None, option("--cache", "Folder that keeps the model's states: much faster.")
]
SavedOption = Annotated[
    str, option("--save-dtype", "Of the weights in the folder: float16, bfloat16, float32.")
]


def read_texts(
    files: list[PromptFile], loaded: LoadedModel, heads: int, recipe: HeadRecipe
) -> ReadTexts:
    """The texts of some files that heads can learn from, at more than a few places each."""
    from paceline.training.texts import ReadTexts

    fewest = heads + 2 + min(8, recipe.points)
    return ReadTexts.of(files, loaded.tokenizer, recipe, fewest)


def report(parts: MedusaParts | ChimeraParts, out: Path) -> None:
    """What was trained, on standard error."""
    found: dict[str, Any] = parts.record["evaluation"]
    for head in range(parts.config.heads):
        shares = ", ".join(f"top-{rank} {found[f'top{rank}'][head]:.1%}" for rank in range(1, 6))
        common.note(f"head {head}: {shares}")
    size = sum(tensor.nbytes for tensor in parts.tensors.values())
    # Whole numbers are ids of tokens.
    numbers = sum(part.numel() for part in parts.tensors.values() if part.is_floating_point())
    common.note(
        f"{out} holds {numbers / 1e6:.2f} million trained numbers in {size / 1e6:.1f} MB after "
        f"{parts.record['steps']} steps in {parts.record['seconds'] / 60:.1f} minutes; use them "
        f"with --method {parts.method}:parts={out}"
    )
