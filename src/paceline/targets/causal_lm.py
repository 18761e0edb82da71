"""Any decoder-only causal language model of transformers as a target.

The model's own `forward` runs, with a cache of ours, explicit positions and a 4-D float mask, so
no architecture is re-implemented and `device_map`, quantised weights and tensor parallelism keep
working.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.prefix import common_prefix
from paceline.protocols import HIDDEN_STATES, VIRTUAL_TOKENS
from paceline.records import Path
from paceline.targets.hidden_states import call_with_states, output_head
from paceline.targets.kv_cache import TreeCache
from paceline.targets.layout import (
    STATIC_WIDTHS,
    PassLayout,
    padded_slots,
    padded_width,
    static_slots,
)
from paceline.targets.pass_inputs import PassInputs
from paceline.targets.prepare import Preparation
from paceline.targets.static_pass import StaticPasses, on_one_gpu
from paceline.targets.support import (
    attention_windows,
    check_supported,
    longest_context,
    narrow_windows,
    self_check,
)
from paceline.targets.virtual_tokens import VirtualTokens
from paceline.targets.weights import least_rows, slot_grain, weight_bytes
from paceline.tree import EMPTY, Tree

__all__ = ["CausalLMTarget"]

PREFILL_CHUNK = 1024

# Slots, over all texts of a batch, that passes of static shape find reserved: what was captured
# is lost when the cache has to move.
STATIC_ROOM = 2048

# Pending tokens per text up to which a pass may have a static shape: its root and what a draft
# model, which is a target of its own, lags behind. Passes that read a prompt seldom come twice in
# one shape.
_FEW_PENDING = 4


class CausalLMTarget:
    """Drives `model` through the `Target` contract.

    model: a decoder-only causal LM in evaluation mode, on any device or devices.
    preparation: what `prepare` did to the model, for reports.
    check: compare a tree pass with the model's plain forward first (some tens of milliseconds
    for a small model).
    static: run passes that recur in few shapes on inputs that keep their place, captured as CUDA
    graphs where the device is one; None where the whole model is on one CUDA device.

    Raises ModelError, naming the reason, where the model cannot be driven this way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        preparation: Preparation | None = None,
        check: bool = True,
        static: bool | None = None,
    ) -> None:
        check_supported(model)
        self.model = model
        self.preparation = preparation or Preparation()
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_context = longest_context(config)
        self.capabilities = frozenset({VIRTUAL_TOKENS, HIDDEN_STATES})
        self._virtual = VirtualTokens(model.get_input_embeddings(), self.vocab_size)
        self._hidden_size = 0  # of the states that are kept
        self._windows = attention_windows(config)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._min_rows = least_rows(model)
        self._slot_grain = slot_grain(model)
        self.static = on_one_gpu(model) if static is None else static
        self._cached: list[list[int]]  # the tokens behind the cache's slots, per text
        self._pending: list[list[int]]  # to be read by the next pass, the root last
        self._passes: StaticPasses | None
        self._inputs: PassInputs | None = None  # of the last pass in the ordinary way
        self._forget()
        if check:
            with narrow_windows(config):
                self._windows = attention_windows(config)
                self_check(self, model)
            self._windows = attention_windows(config)
            self._forget()

    @property
    def device(self) -> torch.device:
        """Where inputs go: to the embeddings, or where accelerate will bring them."""
        embeddings = self.model.get_input_embeddings()
        hook = getattr(embeddings, "_hf_hook", None)
        place = getattr(hook, "execution_device", None)
        return torch.device(embeddings.weight.device if place is None else place)

    @property
    def weights(self) -> str:
        """How the linear layers hold their weights, one of `prepare.WEIGHTS`."""
        return self.preparation.weights

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one pass has to read: the floor under its cost."""
        return weight_bytes(self.model)

    @property
    def graphs(self) -> dict[str, Any]:
        """What became of static shapes, for reports: {"static": whether there are any, and then
        "shapes", "captured", "failed"}; see `StaticPasses.as_json`."""
        return {"static": self.static, **(self._passes.as_json() if self._passes else {})}

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """The id of the first of `embeddings` [count, hidden]. See `TakesVirtualTokens`."""
        known = len(self._virtual)
        first = self._virtual.add(embeddings, self.device)
        if len(self._virtual) != known and self.static:
            self._passes = StaticPasses(self._static_forward, self.device)  # had another table
        return first

    def keep_states(self) -> None:
        """See `ShowsStates.keep_states`. What is in the cache already is read again."""
        if not self._hidden_size:
            self._hidden_size = self.model.config.get_text_config().hidden_size
            self._forget()

    def states(self, text: int) -> torch.Tensor:
        """[cached tokens, hidden]. See `ShowsStates.states`."""
        return self._cache.states(text)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., hidden]. See `ShowsStates.embed`."""
        embeddings: torch.Tensor = self.model.get_input_embeddings()(tokens.to(self.device))
        return embeddings

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, hidden] and [n]. See `ShowsStates.output_head`."""
        return output_head(self.model, tokens)

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        """Hold these texts. See `Target.sync`.

        What is missing waits for `score`, which reads it in chunks, the last one in one pass with
        the first tree: so the time that a prompt takes is the time of its first pass.
        """
        rows, lengths = self._reuse(contexts)
        self._cache.select(rows, lengths)
        self._cached = [list(text[:kept]) for text, kept in zip(contexts, lengths, strict=True)]
        self._pending = [list(text[kept:]) for text, kept in zip(contexts, lengths, strict=True)]

    @torch.inference_mode()
    def score(self, trees: Sequence[Tree]) -> list[torch.Tensor]:
        """Logits [len(tree) + 1, vocab_size] per tree. See `Target.score`."""
        self._virtual.check(max((max(tree.tokens) for tree in trees if tree.tokens), default=0))
        while max(map(len, self._pending)) > PREFILL_CHUNK:
            self._prefill(PREFILL_CHUNK)
        needed = [
            len(pending) + len(tree) for pending, tree in zip(self._pending, trees, strict=True)
        ]
        passes = self._passes if self._recurs(max(needed)) else None
        rows = padded_width(max(needed), self._least_rows(len(trees)), static=passes is not None)
        layout = PassLayout(self._cache.lengths, self._pending, trees, rows)
        # Rows to read: from each text's root to its last node.
        wanted = [
            range(len(pending) - 1, count)
            for pending, count in zip(self._pending, needed, strict=True)
        ]
        if passes is not None:
            slots = static_slots(max(layout.cached) + layout.width)
            self._cache.reserve(max(slots, STATIC_ROOM // len(trees)))
            logits = passes.run(layout, slots, self._cache.moves)
            # The next pass overwrites them, and whoever hears of this round may keep them.
            return [
                logits[text, rows.start : rows.stop].clone() for text, rows in enumerate(wanted)
            ]
        # Texts of a batch share the list.
        keep = sorted(set().union(*wanted))
        logits = self._forward(layout, keep)
        places = [keep.index(rows[0]) for rows in wanted]
        return [logits[i, at : at + len(rows)] for i, (at, rows) in enumerate(zip(places, wanted))]

    @torch.inference_mode()
    def commit(self, paths: Sequence[Path]) -> None:
        """Keep the accepted nodes. See `Target.commit`."""
        bases = [
            length + len(pending)
            for length, pending in zip(self._cache.lengths, self._pending, strict=True)
        ]
        self._cache.commit(bases, [path.nodes for path in paths])
        for text, path in enumerate(paths):
            self._cached[text] += [*self._pending[text], *path.tokens[:-1]]
            self._pending[text] = [path.tokens[-1]]

    def _forget(self) -> None:
        """Hold no text."""
        layers = self.model.config.get_text_config().num_hidden_layers
        self._cache = TreeCache(layers, self._hidden_size)
        self._passes = StaticPasses(self._static_forward, self.device) if self.static else None
        self._cached, self._pending = [], []

    def _recurs(self, rows: int) -> bool:
        """Whether the next pass, which needs so many rows, is run in a static shape."""
        if self._passes is None or not self._passes.usable or rows > STATIC_WIDTHS[-1]:
            return False
        return max(map(len, self._pending)) <= _FEW_PENDING

    def _reuse(self, contexts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """For each text the cache row to continue from, and how much of that row to keep."""
        rows, lengths = [], []
        for index, text in enumerate(contexts):
            common = [common_prefix(cached, text) for cached in self._cached]
            kept = max(common, default=0)
            # A text that shares nothing overwrites its own row, where there is one.
            rows.append(common.index(kept) if kept else max(min(index, len(common) - 1), 0))
            # The root is never in the cache.
            lengths.append(min(kept, len(text) - 1))
        return rows, lengths

    def _prefill(self, count: int) -> None:
        """Read up to `count` pending tokens of each text into the cache, all but the root."""
        read = [min(count, len(pending) - 1) for pending in self._pending]
        chunks = [pending[:size] for pending, size in zip(self._pending, read, strict=True)]
        self._forward(PassLayout(self._cache.lengths, chunks, [EMPTY] * len(chunks)), keep=[0])
        for text, chunk in enumerate(chunks):
            self._cached[text] += chunk
            self._pending[text] = self._pending[text][len(chunk) :]
            self._cache.lengths[text] += len(chunk)

    def _forward(self, layout: PassLayout, keep: Sequence[int]) -> torch.Tensor:
        """One pass; the logits [batch, at least len(keep), vocabulary] of its rows `keep`."""
        shape = (len(layout.trees), layout.width)
        if self._inputs is None or self._inputs.tokens.shape != shape:
            self._inputs = PassInputs(*shape, self.device)
        inputs = self._inputs.fill(layout)
        slots = padded_slots(max(layout.cached) + layout.width, self._slot_grain)
        self._cache.reserve(slots)
        alike = len(set(layout.cached)) == 1
        self._cache.direct(layout.cached[0] if alike else (inputs.texts, inputs.slots), slots)
        # The output head, too, costs as much for a few rows as for one.
        least = min(self._least_rows(len(layout.trees)), layout.width)
        rows = [*keep, *[keep[-1]] * (least - len(keep))]
        index = torch.tensor(rows, device=self.device)
        tokens = self._tokens(inputs.tokens, layout.largest_token >= self.vocab_size)
        if self._keeps_logits:
            return self._call(inputs, slots, **tokens, logits_to_keep=index)
        return self._call(inputs, slots, **tokens)[:, index]

    def _least_rows(self, batch: int) -> int:
        """Rows per text below which a pass of the batch is no cheaper: the products see the rows
        of all texts as one block."""
        return -(-self._min_rows // batch)

    def _static_forward(self, inputs: PassInputs, slots: int) -> torch.Tensor:
        """One pass over inputs that may change later; the logits of all its rows."""
        self._cache.direct((inputs.texts, inputs.slots), slots)
        return self._call(inputs, slots, **self._tokens(inputs.tokens, len(self._virtual) > 0))

    def _call(self, inputs: PassInputs, slots: int, **arguments: torch.Tensor) -> torch.Tensor:
        def call() -> torch.Tensor:
            outputs = self.model(
                **arguments,
                attention_mask=inputs.masks(slots, self._windows, self.model.dtype),
                position_ids=inputs.positions,
                past_key_values=self._cache,
                use_cache=True,
            )
            logits: torch.Tensor = outputs.logits
            return logits

        if not self._hidden_size:
            return call()
        logits, states = call_with_states(self.model, call)
        self._cache.put_states(states)
        return logits

    def _tokens(self, ids: torch.Tensor, virtual: bool) -> dict[str, torch.Tensor]:
        """The model's argument for the tokens `ids`; virtual: there may be virtual ones."""
        return {"inputs_embeds": self._virtual.embed(ids)} if virtual else {"input_ids": ids}
