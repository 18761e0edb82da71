"""What is trained for EAGLE, as a folder holds it; the module is imported on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.drafters.head_configs import EagleConfig
from paceline.drafters.trained_heads import HeadParts

if TYPE_CHECKING:
    from paceline.drafters.eagle_model import EagleModel
    from paceline.drafters.medusa_heads import HeadModule
    from paceline.kernels.block_layers import BlockLinear
    from paceline.protocols import Target

__all__ = ["EagleParts", "eagle_shapes"]


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

    def _compile(self, module: HeadModule, kind: type[BlockLinear]) -> object | None:
        from paceline.drafters.eagle_programs import compile_eagle

        return compile_eagle(module, kind)


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
