"""Reading texts with the target: many packed in one pass, through the passes it decodes with.

A model loaded in the blocks of its file reads in them: a drafter learns from the very states it
will be given, and reading takes half the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from paceline.errors import ModelError
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.prepare import prepare
from paceline.training.dataset import Text
from paceline.training.state_cache import StateShape

__all__ = ["TargetReader"]

_PASS_TOKENS = 2048  # the mask of a pass has the square of that
_ROWS = 1024  # through the output head at a time


class TargetReader:
    """Reads with `model`, which is changed in place, see `paceline.targets.prepare`.

    shape: of the states to return.

    Raises ModelError for a model that cannot be driven this way.
    """

    def __init__(self, model: PreTrainedModel, shape: StateShape) -> None:
        self.model = model.eval().requires_grad_(False)
        self._shape = shape
        prepared = prepare(model)
        self._target = CausalLMTarget(model, preparation=prepared, static=False)
        self._target.keep_states(shape.taps)

    @torch.inference_mode()
    def read(self, texts: Sequence[Text]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """See `StateReader`.

        Raises ModelError if states do not fit into half precision.
        """
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        order = sorted(range(len(texts)), key=lambda number: len(texts[number].tokens))
        for group in _passes(order, texts):
            for number, states in zip(group, self._pass([texts[number] for number in group])):
                found[number] = self._kept(texts[number], states)
        return [found[number] for number in range(len(texts))]

    def _pass(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """Read whole texts in one pass: states [tokens, taps + 1, hidden] of each."""
        target = self._target
        # The last token given to `open` is the root, which is not read.
        slots = [target.open([*text.tokens, 0]) for text in texts]
        sizes = {slot: len(text.tokens) for slot, text in zip(slots, texts)}
        target.score({}, sizes)
        found = []
        for slot in slots:
            taps = [target.states(slot, [tap]) for tap in self._shape.taps]
            found.append(torch.stack([*taps, target.states(slot)], dim=1))
            target.close(slot)
        target.forget()
        return found

    def _kept(self, text: Text, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = states[text.begin :]
        greedy = self._greedy(text, states[:, -1])
        half = states.to(getattr(torch, self._shape.dtype))
        if not bool(half.isfinite().all()):
            raise ModelError(
                f"the states of {type(self.model).__name__} are too large for half precision: load "
                "it with --dtype bfloat16"
            )
        return half.to("cpu").contiguous(), greedy.to("cpu", torch.int32)

    def _greedy(self, text: Text, states: torch.Tensor) -> torch.Tensor:
        """The likeliest token after each; a greedy answer already holds it."""
        if text.certain:
            known = torch.tensor(text.tokens[text.first + 1 :])
            before = self._likeliest(states[: text.first - text.begin])
            return torch.cat([before, known, self._likeliest(states[-1:])])
        return self._likeliest(states)

    def _likeliest(self, states: torch.Tensor) -> torch.Tensor:
        head = self.model.get_output_embeddings()
        dtype = states.dtype
        found = [head(rows.to(dtype)).argmax(dim=-1) for rows in torch.split(states, _ROWS)]
        return torch.cat(found).cpu() if len(states) else torch.empty(0, dtype=torch.int64)


def _passes(order: Sequence[int], texts: Sequence[Text]) -> Iterator[list[int]]:
    """Group the numbers of texts that share a pass."""
    group: list[int] = []
    size = 0
    for number in order:
        if group and size + len(texts[number].tokens) > _PASS_TOKENS:
            yield group
            group, size = [], 0
        group.append(number)
        size += len(texts[number].tokens)
    if group:
        yield group
