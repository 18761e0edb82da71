"""What a target knows about its model, and a model that is opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Self

from paceline.kernels.attention import GROUPED
from paceline.targets.support import attention_windows, longest_context
from paceline.targets.weights import least_rows, slot_grain, weight_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelFacts:
    """What a target needs to know about a model, without its weights.

    name: of its class. dtype: e.g. "float32". device: its kind, e.g. "cpu". windows: see
    `attention_windows`. by_text: it uses paceline's attention. min_rows, grain, weight_bytes: see
    `paceline.targets.weights`.
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
        """Read the facts of a model in its present form."""
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


class LateModel:
    """A model that may not be open yet.

    open: returns it, ready for passes; called at most once.
    """

    def __init__(self, facts: ModelFacts, open: Callable[[], PreTrainedModel]) -> None:
        self.facts = facts
        self._open = open
        self._turn = Lock()  # threads share a session
        self._model: PreTrainedModel | None = None

    @classmethod
    def opened(cls, model: PreTrainedModel) -> Self:
        """Wrap an open model."""
        return cls(ModelFacts.of(model), lambda: model)

    def get(self) -> PreTrainedModel:
        """Return the model, opening it if needed. Raises what `open` raises."""
        with self._turn:
            if self._model is None:
                self._model = self._open()
        return self._model
