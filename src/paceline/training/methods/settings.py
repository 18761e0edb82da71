"""The settings of every trained method, from which its command and its run follow.

The command line imports them, so they know no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError
from paceline.trained_configs import (
    Bottom,
    ChimeraConfig,
    EagleConfig,
    Form,
    MedusaConfig,
    PromptConfig,
    PromptHead,
    PromptMask,
)
from paceline.training.settings import (
    WHAT,
    Block,
    HeadSettings,
    SavedFloats,
    Schedule,
    SoftLoss,
    TrainerSettings,
    option,
)

Features = Literal["last", "three"]
"""last: the model's last hidden state (EAGLE 1 and 2). three: the outputs of a low, a middle and a
high layer (EAGLE-3)."""


@dataclass(frozen=True)
class PpdSettings(TrainerSettings):
    """What is trained, see `PromptConfig`, and how, see `TrainerSettings` (PPD, section 6.1.2)."""

    name = "ppd"
    summary = "Train prompt tokens for PPD: embeddings that let a model guess several tokens ahead."
    method = "paceline.training.methods.ppd:Ppd"
    may_differ = TrainerSettings.may_differ | {"vocabulary", "output_head"}

    heads: int = option(3, "Prompt tokens: how many tokens ahead to guess.", WHAT)
    vocabulary: int = option(
        0, "Learn and measure among this many frequent tokens; drafts guess all. 0: all.", WHAT
    )
    epts: int = option(1, "Embeddings (EPTs) per prompt token.", WHAT)
    mask: PromptMask = option(
        "ensemble", "What EPTs see of one another: ensemble, decoder, encoder.", WHAT
    )
    learned_weights: bool = option(
        False, "Learn weights for the guesses of EPTs instead of averaging them.", WHAT
    )
    prefix_tokens: int = option(0, "Trained keys and values per layer.", WHAT)
    output_head: PromptHead = option(
        "shared", "shared (the model's), small (a block before it) or full (a copy).", WHAT
    )
    exits: int = option(1, "Number of last layers to average.", WHAT)
    save_dtype: SavedFloats = option(
        "float32", "Type of the saved embeddings: float16, bfloat16, float32.", WHAT
    )
    points: int = option(64, "Places of a window to learn from in a step.")
    learning_rate: float = option(1e-2, "Learning rate of AdamW after the warm-up.")
    head_rate: float = option(0.1, "Rate of an output head, relative to --learning-rate.")
    schedule: Schedule = option("cosine", "constant (then linear to 0) or cosine.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("points",), 1)
        if not self.head_rate > 0:
            raise UsageError(f"head_rate must be positive, got {self.head_rate}")

    def config(self) -> PromptConfig:
        return self.values_for(PromptConfig, prompt_tokens=self.heads, head=self.output_head)


@dataclass(frozen=True)
class MedusaSettings(HeadSettings):
    """What is trained, see `MedusaConfig`, and how, see `TrainerSettings`."""

    name = "medusa"
    summary = (
        "Train Medusa-1 heads: each guesses a token further ahead from the model's last state."
    )
    method = "paceline.training.methods.medusa:Medusa"

    layers: int = option(1, "Residual blocks of a head.", WHAT)
    form: Form = option("compact", "compact (ends in the model's own head) or full.", WHAT)
    learning_rate: float = option(1e-3, "Learning rate of AdamW after the warm-up.")

    @property
    def rounds(self) -> bool:
        return self.form == "compact" and self.layers == 1

    def config(self) -> MedusaConfig:
        return self.values_for(MedusaConfig)


@dataclass(frozen=True)
class ChimeraSettings(HeadSettings):
    """What is trained, see `ChimeraConfig`, and how, see `TrainerSettings`."""

    name = "chimera"
    summary = "Train Chimera's draft model: n-gram encoder, context encoder and residual heads."
    method = "paceline.training.methods.chimera:Chimera"

    heads: int = option(3, "How many tokens ahead to guess.", WHAT)
    order: int = option(3, "Tokens that the n-gram encoder sees.", WHAT)
    form: Form = option("compact", "compact (ends in the model's own head) or full.", WHAT)
    layers: int = option(0, "Residual blocks of a head.", WHAT)
    rank: int = option(0, "Rank of the matrices of n-gram block and heads; 0: full.", WHAT)
    residual: bool = option(True, "Heads also see the model's last state.", WHAT)
    bottom: Bottom = option(
        "ngram", "ngram; for ablations: transformer frozen, transformer finetune.", WHAT
    )
    block: Block = option(
        "random", "How the context encoder starts: random, or last-layer (the model's).", WHAT
    )
    final_norm: bool = option(
        False, "Normalise the context encoder's output, as the model does.", WHAT
    )
    intermediate: int = option(
        0, "Width of the context encoder's feed-forward; 0: as in the model's layers.", WHAT
    )
    decay: float = option(1.0, "Loss weight of a head relative to the one before.")
    state_weight: float = option(1.0, "Loss weight of the distance from the model's states.")
    own_guesses: bool = option(False, "Learn after its own guesses instead of the text.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("state_weight", "intermediate"), 0)
        if self.own_guesses and self.bottom != "ngram":
            raise UsageError(
                "a transformer at the bottom can learn only after the tokens of texts: leave out "
                "own guesses"
            )

    @property
    def rounds(self) -> bool:
        return self.form == "compact" and not self.layers and self.bottom == "ngram"

    def config(self) -> ChimeraConfig:
        """The configuration, before it is sized for a model."""
        return self.values_for(ChimeraConfig, intermediate=ChimeraConfig.intermediate)


@dataclass(frozen=True)
class EagleSettings(HeadSettings):
    """What is trained, see `EagleConfig`, and how, see `TrainerSettings`."""

    name = "eagle"
    summary = "Train EAGLE's draft model: one block that continues from the model's own features."
    method = "paceline.training.methods.eagle:Eagle"
    may_differ = TrainerSettings.may_differ | {"heads"}  # steps share all tensors

    heads: int = option(3, "Drafting steps to learn, one after the other.", WHAT)
    features: Features = option(
        "last", "last (the last state, EAGLE 1 and 2) or three (layers, EAGLE 3).", WHAT
    )
    block: Block = option(
        "last-layer", "How the block starts: random, or last-layer (the model's).", WHAT
    )
    intermediate: int = option(
        0, "Width of the block's feed-forward; 0: as in the model's layers.", WHAT
    )
    loss: SoftLoss = option("blend", "kl, blend (kl and total variation) or labels.")
    state_weight: float = option(
        0.0, "Loss weight of the distance from the model's next state (EAGLE 1)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range(("state_weight", "intermediate"), 0)
        if self.state_weight and self.features != "last":
            raise UsageError(
                "state_weight compares outputs with last states: leave it at 0, or leave features "
                "at last"
            )

    def config(self) -> EagleConfig:
        """The configuration, before it is fitted to a model."""
        return self.values_for(EagleConfig, steps=self.heads, intermediate=EagleConfig.intermediate)

    def taps(self, layers: int) -> tuple[int, ...]:
        """See `TrainerSettings`: layers 2, `layers` // 2 and `layers` - 3, as in the official code,
        within the layers there are."""
        if self.features == "last":
            return ()
        return tuple(sorted({min(2, layers), max(1, layers // 2), max(1, layers - 3)}))


@dataclass(frozen=True)
class DraftSettings(TrainerSettings):
    """What is trained, and how; see `TrainerSettings`."""

    name = "draft"
    summary = "Train a draft model: some layers of the model, on its embeddings and output head."
    use = "speculative:draft={folder}"
    method = "paceline.training.methods.draft:Draft"
    may_differ = TrainerSettings.may_differ | {"layers", "rank"}  # see `Draft.start_from`

    layers: str = option(
        "", "Layers to keep, e.g. 0,10,20,29; default: the first and the last.", WHAT
    )
    rank: int = option(
        0,
        "Store the layers as updates of this rank to the model's own weights (LoRA); 0: whole.",
        WHAT,
    )
    standalone: bool = option(False, "Also store the embeddings in the folder.", WHAT)
    save_dtype: SavedFloats = option(
        "float16", "Type of the saved weights: float16, bfloat16, float32.", WHAT
    )
    heads: int = option(4, "Longest chain of guesses to measure.")
    decay: float = option(1.0, "Weight of a guess relative to the one before it, in validation.")
    learning_rate: float = option(1e-3, "Learning rate of AdamW after the warm-up.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standalone and self.vocabulary:
            raise UsageError(
                "a standalone draft model needs its whole vocabulary: leave out --vocabulary or "
                "--standalone"
            )
        self._check_range(("rank",), 0)
        if self.standalone and self.rank:
            raise UsageError(
                "a standalone draft model has whole layers: leave out --rank or --standalone"
            )
        self.kept(1)

    def kept(self, count: int) -> tuple[int, ...]:
        """The layers kept of a model that has `count`."""
        if not self.layers:
            return tuple(sorted({0, count - 1}))
        try:
            return tuple(int(layer) for layer in self.layers.split(","))
        except ValueError as error:
            raise UsageError(
                f"layers must be numbers separated by commas, got {self.layers!r}"
            ) from error


TRAINED: dict[str, type[TrainerSettings]] = {
    kind.name: kind
    for kind in (PpdSettings, MedusaSettings, ChimeraSettings, EagleSettings, DraftSettings)
}
"""Name -> settings."""
