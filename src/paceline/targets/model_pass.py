"""Run a laid-out pass: by the model's own forward, compiled, or as few operators on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import ModelError, UsageError
from paceline.kernels.programs.steps import Lowered
from paceline.kernels.token_table import part_of_table
from paceline.protocols import Target
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.hidden_states import call_with_states, decoder_layers
from paceline.targets.kv_cache import TreeCache
from paceline.targets.late_model import LateModel
from paceline.targets.layout import PassLayout
from paceline.targets.one_call.compiled_pass import ChainPass, CompiledPass, compiled
from paceline.targets.one_call.device_pass import DevicePass, device_steps
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.pass_inputs import InputsByText, InputsInOne, PassInputs, Windows
from paceline.targets.support import attention_windows, cache_argument
from paceline.targets.trials import narrow_windows, reads_embeddings, self_check
from paceline.targets.virtual_tokens import VirtualTokens
from paceline.targets.weights import on_one_gpu

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelPass:
    """Runs `model` with paceline's cache, mask and positions.

    virtual: the embeddings of ids beyond the vocabulary.

    cache: where keys and values go. windows: see `attention_windows`. by_text: each text attends to
    its own stretch. kept: layers whose outputs the cache keeps, too. compiled, on_device: one of
    them runs passes in the model's place; if both are None, the model's own forward runs,
    and own_forward says why. as_opened: whether no check has switched any of this off.
    min_rows: fewer rows cost no less.
    """

    cache: TreeCache

    def __init__(self, model: LateModel, virtual: VirtualTokens) -> None:
        facts = model.facts
        self.windows: Windows = facts.windows
        self.by_text = facts.by_text
        self.as_opened = True
        self.kept: tuple[int, ...] = ()
        self.compiled: CompiledPass | None = None
        self.on_device: DevicePass | None = None
        self.own_forward = "it was asked for"
        self.min_rows = facts.min_rows
        self._late = model
        self._virtual = virtual
        self._inputs: InputsInOne | None = None  # of the last pass

    @property
    def _model(self) -> PreTrainedModel:
        return self._late.get()

    @cached_property
    def reads_embeddings(self) -> bool:
        """Whether scores follow from embeddings alone; programs write these in a step of their
        own."""
        return bool(self.compiled or self.on_device) or reads_embeddings(self._model)

    @cached_property
    def _cache_name(self) -> str:
        return cache_argument(self._model)

    @cached_property
    def _keeps_logits(self) -> bool:
        """Whether the model computes the logits of chosen rows alone. One that is spread over
        devices cannot: accelerate moves their numbers to its first device, and the last layer may
        be on another."""
        devices = {each.device for each in self._model.parameters() if not each.is_meta}
        known = inspect.signature(self._model.forward).parameters
        return len(devices) < 2 and "logits_to_keep" in known

    @property
    def device(self) -> torch.device:
        """Where inputs go: the device of the embeddings, or where accelerate will move them."""
        if self.compiled is not None:
            return torch.device("cpu")
        hook = getattr(self._model.get_input_embeddings(), "_hf_hook", None)
        place = getattr(hook, "execution_device", None)
        return part_of_table(self._model).device if place is None else torch.device(place)

    def compile(self) -> None:
        """Run passes in one call, or on a GPU in few operators, if the model allows it."""
        try:
            if on_one_gpu(self._model):
                self.use_on_device(device_steps(self._model, self.windows))
            else:
                self.use(compiled(self._model, self.windows))
        except UnfitError as reason:
            self.own_forward = str(reason)

    def use_on_device(self, steps: Lowered) -> None:
        """Run passes by these steps on the model's device. Raises UnfitError if torch cannot."""
        table = self._model.get_input_embeddings().weight.detach()
        self.on_device, self.own_forward = DevicePass(steps, table, self._virtual), ""
        self.on_device.keep_outputs(self.kept)

    def use(self, steps: Lowered) -> None:
        """Run passes by these steps, in one call each, from now on."""
        made = CompiledPass(steps, self._virtual, self.windows)
        made.cache_dtype = FLOAT32 if self.compiled is None else self.compiled.cache_dtype
        made.keep_outputs(self.kept)
        # Last, as other threads may run passes.
        self.compiled, self.own_forward, self.min_rows = made, "", 1

    def check(self, target: Target, model: PreTrainedModel) -> None:
        """Switch off passes that are compiled or on a device, then attention by text, which some
        models do not pass on, if trees do not match the model's own forward. Raises ModelError if
        they still do not. The texts of `target` have to be read again."""
        config = model.config.get_text_config()
        try:
            with narrow_windows(config):
                self.windows = attention_windows(config)
                while True:
                    try:
                        return self_check(target, model)
                    except ModelError as reason:
                        if self.compiled is not None or self.on_device is not None:
                            self.compiled = self.on_device = None
                            self.own_forward = str(reason)
                            self.min_rows = self._late.facts.min_rows
                        elif self.by_text:
                            self.by_text = False
                        else:
                            raise
                        self.as_opened = False
        finally:
            self.windows = attention_windows(config)

    def keep_outputs(self, layers: tuple[int, ...]) -> None:
        """Keep the outputs of these layers and no others, see `Target.keep_states`."""
        if engine := self.compiled or self.on_device:
            engine.keep_outputs(layers)
        elif max(layers, default=0) > len(decoder_layers(self._model)):
            raise UsageError(
                f"{type(self._model).__name__} does not expose the output of layer {max(layers)}: "
                f"choose another method"
            )
        self.kept = layers

    def hold_in(self, cache_dtype: str) -> None:
        """Hold new caches in one of `CACHE_DTYPES`. Raises UsageError for any but float32 if
        passes are not compiled."""
        if self.compiled is not None:
            self.compiled.cache_dtype = cache_dtype
        elif cache_dtype != FLOAT32:
            reason = self.own_forward or "on a GPU"
            raise UsageError(
                f"a cache in {cache_dtype} needs passes compiled for a CPU, but this model runs its "
                f"own forward ({reason}): leave the cache in {FLOAT32}"
            )

    @property
    def cache_dtype(self) -> str:
        """The format of keys and values."""
        if self.compiled is not None:
            return self.compiled.cache_dtype
        return str(self._model.dtype).removeprefix("torch.")

    def run(self, layout: PassLayout) -> torch.Tensor:
        """Run one pass and return the logits [rows or more, vocabulary] of the scored texts."""
        if self.compiled is not None:
            return self.compiled.run(layout.texts, self.windows, self.cache)
        keep = [*chain.from_iterable(layout.scored)]
        # The output head, too, costs the same for one row as for a few.
        least = min(self.min_rows, layout.rows)
        last = keep[-1] if keep else 0
        rows = [*keep, *[last] * (least - len(keep))]
        self.reserve(layout)
        virtual = self.on_device is None and any(
            max(text.tokens, default=0) >= self._virtual.first for text in layout.texts
        )
        index = torch.tensor(rows, device=self.device)
        return self._logits(self._inputs_of(layout), index, virtual)

    def chain(self) -> ChainPass:
        """See `CompiledPass.chain`. Raises ValueError if passes are not compiled."""
        if self.compiled is None:
            raise ValueError("cannot follow a text: passes are not compiled")
        return self.compiled.chain(self.cache)

    def reserve(self, layout: PassLayout) -> Hashable:
        """Prepare for the positions of a pass. Returns what changes whenever something that passes
        read has moved in memory, or passes are run in another way."""
        moves = 0
        if self.on_device is not None:
            moves = self.on_device.reserve(1 + max(max(text.positions) for text in layout.texts))
        return self.cache.moves, id(self.on_device), moves

    def run_static(self, inputs: InputsInOne) -> torch.Tensor:
        """Run one pass over inputs whose contents may change later; logits of all rows. Its
        positions must have been reserved."""
        return self._logits(inputs, None, len(self._virtual) > 0)

    def _inputs_of(self, layout: PassLayout) -> PassInputs:
        if self.by_text:
            return InputsByText(layout, self.cache.slots)
        used, grain = sum(text.used for text in layout.texts), self._late.facts.grain
        shape = (layout.rows, -(-used // grain) * grain)
        if self._inputs is None or self._inputs.shape != shape:
            self._inputs = InputsInOne(*shape, self.device)
        return self._inputs.fill(layout)

    def _logits(self, inputs: PassInputs, keep: torch.Tensor | None, virtual: bool) -> torch.Tensor:
        """Logits of the rows `keep`, or of all. virtual: some of the tokens may be virtual."""
        if self.on_device is not None and isinstance(inputs, InputsInOne):
            return self.on_device.run(inputs, self.windows, self.cache, keep)
        self.cache.direct(inputs.where, inputs.view)
        masks, seen = inputs.masks(self.windows, self._model.dtype)
        arguments: dict[str, Any] = {"input_ids": inputs.tokens}
        if virtual:
            arguments = {"inputs_embeds": self._virtual.embed(inputs.tokens)}
        if seen is not None:
            arguments["rows_seen"] = seen
        if keep is not None and self._keeps_logits:
            arguments["logits_to_keep"] = keep

        def call() -> torch.Tensor:
            outputs = self._model(
                **arguments,
                attention_mask=masks,
                position_ids=inputs.positions,
                **{self._cache_name: self.cache},
                use_cache=True,
                return_dict=True,
            )
            logits: torch.Tensor = outputs.logits
            return logits

        if self.cache.keeps_states:
            logits, states = call_with_states(self._model, call, self.kept)
            self.cache.put_states(states)
        else:
            logits = call()
        return logits[0] if keep is None or self._keeps_logits else logits[0, keep]
