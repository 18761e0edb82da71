"""Reading texts with the target, many in one pass.

On a CPU they are packed, in the passes that the target decodes with: a model loaded in the blocks
of its file reads in them, so a drafter learns from the very states it will be given, and reading
takes half the time. On a GPU they are padded: the mask of packed texts, made on the host, would
take longer than the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.errors import ModelError
from paceline.protocols import LAST_STATES
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.prepare import prepare
from paceline.training.dataset import Text, in_turns
from paceline.training.state_cache import StateShape

_ROWS = 1024  # through the output head at a time
_TRIAL_TOKENS = 12
_APART = 0.5  # relative distance of states; rounding, to 8 bits as well, moves most of them less


class TargetReader:
    """Reads with `model`, which is changed in place, see `paceline.targets.prepare`.

    shape: of the states to return. padded: read padded texts; by default on a GPU.

    Raises ModelError for a model that cannot be driven this way, or whose output head reads
    something else than the last states: drafters learn from these two together.
    """

    def __init__(
        self, model: PreTrainedModel, shape: StateShape, padded: bool | None = None
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self._shape = shape
        layers = model.config.get_text_config().num_hidden_layers
        if padded is None:
            padded = model.device.type == "cuda"
        # A model's own forward normalises what the last layer returns.
        padded = padded and layers not in shape.taps
        self._pass = (_Padded if padded else _Packed)(model, shape.taps)
        self._check_head()

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Compare what the output head reads in the model's own forward with the last states."""
        size = self.model.config.get_text_config().vocab_size
        tokens = tuple((7 + 31 * step) % size for step in range(_TRIAL_TOKENS))
        seen: list[torch.Tensor] = []

        def note(head: object, inputs: tuple[torch.Tensor, ...]) -> None:
            seen.append(inputs[0].reshape(_TRIAL_TOKENS, -1).float())

        with self.model.get_output_embeddings().register_forward_pre_hook(note):
            self.model(torch.tensor([tokens], device=self.model.device), use_cache=False)
        if not seen:  # its weights are used without calling it
            return
        (states,) = self._pass.read([Text("", tokens, 0, 0, False)])
        distances = (states[:, -1].float() - seen[0]).norm(dim=-1) / seen[0].norm(dim=-1)
        if float(distances.median()) > _APART:
            raise ModelError(
                f"the output head of {type(self.model).__name__} does not read its last states as "
                "they are, so no drafter can learn from them: choose another model"
            )

    @torch.inference_mode()
    def read(self, texts: Sequence[Text]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """See `StateReader`. Raises ModelError if states do not fit into half precision."""
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        order = sorted(range(len(texts)), key=lambda number: len(texts[number].tokens))

        def full(group: Sequence[int], longest: int) -> bool:
            return (len(group) + 1) * len(texts[longest].tokens) > self._pass.tokens

        for group in in_turns(order, full):
            found |= zip(group, self._kept([texts[number] for number in group]))
        return [found[number] for number in range(len(texts))]

    def _kept(self, texts: Sequence[Text]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What `read` returns, of texts that share a pass. The host waits for a GPU only here."""
        states = [each[text.begin :] for text, each in zip(texts, self._pass.read(texts))]
        greedy = torch.cat([self._greedy(text, each[:, -1]) for text, each in zip(texts, states)])
        half = torch.cat(states).to(getattr(torch, self._shape.dtype))
        if not bool(half.isfinite().all()):
            raise ModelError(
                f"the states of {type(self.model).__name__} are too large for half precision: load "
                "it with --dtype bfloat16"
            )
        sizes = [len(each) for each in states]
        greedy = greedy.to("cpu", torch.int32)
        return zip(torch.split(half.cpu(), sizes), torch.split(greedy, sizes))

    def _greedy(self, text: Text, states: torch.Tensor) -> torch.Tensor:
        """The likeliest token after each; a greedy answer already holds it."""
        if text.certain:
            known = torch.tensor(text.tokens[text.first + 1 :]).to(states.device)
            before = self._likeliest(states[: text.first - text.begin])
            return torch.cat([before, known, self._likeliest(states[-1:])])
        return self._likeliest(states)

    def _likeliest(self, states: torch.Tensor) -> torch.Tensor:
        head = self.model.get_output_embeddings()
        return torch.cat([head(rows).argmax(dim=-1) for rows in torch.split(states, _ROWS)])


class _Packed:
    """Whole texts one after the other, in a pass of the target; a longer text in several passes."""

    tokens = 2048  # at most in a pass, whose mask may have the square of that

    def __init__(self, model: PreTrainedModel, taps: Sequence[int]) -> None:
        self._taps = taps
        self._target = CausalLMTarget(model, preparation=prepare(model), static=False)
        self._target.keep_states([LAST_STATES, *taps])

    def read(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """States [tokens, taps + 1, hidden] of each text."""
        target = self._target
        # The last token given to `open` is the root, which is not read.
        slots = [target.open([*text.tokens, 0]) for text in texts]
        while any(map(target.pending, slots)):
            target.score({}, dict.fromkeys(slots, self.tokens))
        found = []
        for slot in slots:
            taps = [target.states(slot, [tap]) for tap in self._taps]
            found.append(torch.stack([*taps, target.states(slot)], dim=1))
            target.close(slot)
        target.forget()
        return found


class _Padded:
    """Whole texts side by side, padded at the end, in the model's own forward. Tokens see only what
    is before them, so padding changes nothing, and attention needs no mask."""

    tokens = 1 << 14

    def __init__(self, model: PreTrainedModel, taps: Sequence[int]) -> None:
        self._body, self._taps = model.base_model, taps

    def read(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """See `_Packed.read`."""
        sizes = [len(text.tokens) for text in texts]
        rows = [[*text.tokens, *[0] * (max(sizes) - len(text.tokens))] for text in texts]
        tokens = torch.tensor(rows, device=self._body.device)
        found = self._body(tokens, use_cache=False, output_hidden_states=bool(self._taps))
        taps = [found.hidden_states[tap] for tap in self._taps]
        states = torch.stack([*taps, found.last_hidden_state], dim=2)
        return [row[:size] for row, size in zip(states, sizes)]
