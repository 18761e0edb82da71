"""What is trained for EAGLE, as a folder holds it; the module is loaded on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.drafters.trained_heads import HeadParts
from paceline.errors import ModelError

if TYPE_CHECKING:
    from paceline.drafters.eagle_model import EagleModel
    from paceline.protocols import Target

__all__ = ["EagleConfig", "EagleParts", "eagle_shapes"]


@dataclass(frozen=True)
class EagleConfig:
    """The draft model of EAGLE.

    layers: of the target, counted from 1, whose outputs make a feature together (EAGLE-3); () takes
    the last hidden state (EAGLE 1 and 2).
    steps: of drafting that it was trained for, one after the other; it drafts to any depth.
    vocabulary: guess among so many tokens only, the most frequent ones of the training answers; 0
    is all of them.
    attention_heads, kv_heads, head_size, intermediate: of the block. rotary_base: of its positions.
    biases: whether queries, keys and values have some, as Qwen2's have.

    Raises ModelError for a value out of range.
    """

    layers: tuple[int, ...] = ()
    steps: int = 3
    vocabulary: int = 0
    attention_heads: int = 8
    kv_heads: int = 8
    head_size: int = 64
    intermediate: int = 1024
    rotary_base: float = 10_000.0
    biases: bool = False

    def __post_init__(self) -> None:
        least = {"steps": 1, "attention_heads": 1, "kv_heads": 1, "head_size": 2, "intermediate": 1}
        for name, bound in {**least, "vocabulary": 0}.items():
            if getattr(self, name) < bound:
                raise ModelError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if self.attention_heads % self.kv_heads or self.head_size % 2:
            raise ModelError(
                f"{self.attention_heads} attention heads of size {self.head_size} cannot share "
                f"{self.kv_heads} keys and values: heads must be a multiple of these, the size even"
            )
        if min(self.layers, default=1) < 1 or list(self.layers) != sorted(set(self.layers)):
            raise ModelError(f"layers must be ascending numbers from 1 on, got {self.layers}")
        if self.rotary_base <= 1:
            raise ModelError(f"rotary_base must be larger than 1, got {self.rotary_base}")


@dataclass(frozen=True)
class EagleParts(HeadParts[EagleConfig, "EagleModel"]):
    """A draft model of EAGLE for one model; see `EagleModel` for the tensors."""

    kind: ClassVar[str] = "EAGLE parts"
    method: ClassVar[str] = "eagle"

    @classmethod
    def read_config(cls, content: dict[str, Any]) -> EagleConfig:
        """See `TrainedParts`."""
        return EagleConfig(**{**content, "layers": tuple(content["layers"])})

    @property
    def vocabulary(self) -> int:
        """How many tokens may be guessed; 0 is all."""
        return self.config.vocabulary

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors."""
        return dict(eagle_shapes(self.config, self.base.hidden_size))

    def _new_module(self, target: Target) -> EagleModel:
        from paceline.drafters.eagle_model import EagleModel

        head = target.output_head(self.token_ids)
        model = EagleModel(self.config, head, target.embed, self.token_ids)
        model.words = target.word_table()
        return model


def eagle_shapes(config: EagleConfig, hidden: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the tensors of `EagleModel` by their names. hidden: numbers of a state."""
    queries = config.attention_heads * config.head_size
    keys = config.kv_heads * config.head_size
    taps = len(config.layers)
    fusion = {"tap_norms": (taps, hidden), "fuse.weight": (hidden, taps * hidden)} if taps else {}
    biases = {"query.bias": (queries,), "key.bias": (keys,), "value.bias": (keys,)}
    return {
        **fusion,
        **(biases if config.biases else {}),
        "feature_norm": (hidden,),
        "own_norm": (hidden,),
        "word_norm": (hidden,),
        "enter.weight": (hidden, 2 * hidden),
        "row_norm": (hidden,),
        "query.weight": (queries, hidden),
        "key.weight": (keys, hidden),
        "value.weight": (keys, hidden),
        "join.weight": (hidden, queries),
        "inner_norm": (hidden,),
        "gate.weight": (config.intermediate, hidden),
        "up.weight": (config.intermediate, hidden),
        "down.weight": (hidden, config.intermediate),
        "last_norm": (hidden,),
    }
