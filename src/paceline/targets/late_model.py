"""What a target knows of its model, and a model that is opened when somebody needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from paceline.kernels.attention import GROUPED
from paceline.targets.support import attention_windows, longest_context
from paceline.targets.weights import least_rows, slot_grain, weight_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["LateModel", "ModelFacts"]


@dataclass(frozen=True)
class ModelFacts:
    """All but the numbers.

    name: of its class. dtype: e.g. "float32". device: kind of, e.g. "cpu". windows: see `attention_windows`. by_text: attention
    is ours. min_rows, grain, weight_bytes: see `paceline.targets.weights`.
    """

    name: str
    dtype: str
    device: str
    vocab_size: int
    hidden_size: int
    layers: int
    max_context: int | None
    windows: Mapping[str, int | None]
    by_text: bool
    min_rows: int
    grain: int
    weight_bytes: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Those of a model as it is now."""
        config = model.config.get_text_config()
        return cls(
            name=type(model).__name__,
            dtype=str(model.dtype).removeprefix("torch."),
            device=model.device.type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            layers=config.num_hidden_layers,
            max_context=longest_context(config),
            windows=attention_windows(config),
            by_text=model.config._attn_implementation == GROUPED,
            min_rows=least_rows(model),
            grain=slot_grain(model),
            weight_bytes=weight_bytes(model),
        )

    def as_json(self) -> dict[str, Any]:
        """To be kept; `ModelFacts(**found)` is the way back."""
        return asdict(self)


class LateModel:
    """A model, perhaps not yet opened.

    open: returns it, ready for passes; called once at most.
    """

    def __init__(self, facts: ModelFacts, open: Callable[[], PreTrainedModel]) -> None:
        self.facts = facts
        self._open = open
        self._turn = Lock()  # threads share a session
        self._model: PreTrainedModel | None = None

    @classmethod
    def opened(cls, model: PreTrainedModel) -> Self:
        """One that is there."""
        late = cls(ModelFacts.of(model), lambda: model)
        late.get()
        return late

    def get(self) -> PreTrainedModel:
        """The model. Raises what opening it raises."""
        with self._turn:
            if self._model is None:
                self._model = self._open()
        return self._model
