"""Any decoder-only causal language model of transformers as a target.

The model's own `forward` runs, with a cache of ours, explicit positions and a 4-D float mask, so
no architecture is re-implemented and `device_map`, quantised weights and tensor parallelism keep
working.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from paceline.errors import UsageError
from paceline.prefix import common_prefix
from paceline.records import Path
from paceline.targets.kv_cache import TreeCache
from paceline.targets.layout import PassLayout
from paceline.targets.prepare import Preparation
from paceline.targets.support import (
    attention_windows,
    check_supported,
    longest_context,
    narrow_windows,
    self_check,
)
from paceline.targets.weights import least_rows, weight_bytes
from paceline.tree import EMPTY, Tree

__all__ = ["CausalLMTarget"]

PREFILL_CHUNK = 1024


class CausalLMTarget:
    """Drives `model` through the `Target` contract.

    model: a decoder-only causal LM in evaluation mode, on any device or devices.
    virtual_embeddings: [count, hidden] input embeddings of the ids vocab_size, vocab_size + 1, …
    preparation: what `prepare` did to the model, for reports.
    check: compare a tree pass with the model's plain forward first (some tens of milliseconds
    for a small model).

    Raises ModelError, naming the reason, where the model cannot be driven this way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        virtual_embeddings: torch.Tensor | None = None,
        preparation: Preparation | None = None,
        check: bool = True,
    ) -> None:
        check_supported(model)
        self.model = model
        self.preparation = preparation or Preparation()
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_context = longest_context(config)
        self.capabilities = frozenset({"virtual_tokens"} if virtual_embeddings is not None else ())
        self._virtual = virtual_embeddings
        self._windows = attention_windows(config)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._min_rows = least_rows(model)
        self._cache = TreeCache(config.num_hidden_layers)
        self._cached: list[list[int]] = []  # the tokens behind the cache's slots, per text
        self._pending: list[list[int]] = []  # to be read by the next pass, the root last
        if check:
            with narrow_windows(config):
                self._windows = attention_windows(config)
                self_check(self, model)
            self._windows = attention_windows(config)
            self._cache = TreeCache(config.num_hidden_layers)
            self._cached, self._pending = [], []

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

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        """Hold these texts. See `Target.sync`.

        What is missing is read here in chunks; the last chunk waits for `score`, which reads it
        in one pass with the first tree.
        """
        rows, lengths = self._reuse(contexts)
        self._cache.select(rows, lengths)
        self._cached = [list(text[:kept]) for text, kept in zip(contexts, lengths, strict=True)]
        self._pending = [list(text[kept:]) for text, kept in zip(contexts, lengths, strict=True)]
        while max(map(len, self._pending)) > PREFILL_CHUNK:
            self._prefill(PREFILL_CHUNK)

    @torch.inference_mode()
    def score(self, trees: Sequence[Tree]) -> list[torch.Tensor]:
        """Logits [len(tree) + 1, vocab_size] per tree. See `Target.score`."""
        layout = PassLayout(self._cache.lengths, self._pending, trees, self._min_rows)
        # Rows to read: from each text's root to its last node. Texts of a batch share the list.
        wanted = [
            range(len(pending) - 1, len(pending) + len(tree))
            for pending, tree in zip(self._pending, trees, strict=True)
        ]
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

    @torch.inference_mode()
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
        slots = self._cache.prepare(layout.width, self.device)
        # The output head, too, costs as much for a few rows as for one.
        rows = [*keep, *[keep[-1]] * (min(self._min_rows, layout.width) - len(keep))]
        index = torch.tensor(rows, device=self.device)
        outputs = self.model(
            **self._inputs(layout.tokens()),
            attention_mask=self._masks(layout, slots),
            position_ids=torch.from_numpy(layout.positions()).to(self.device),
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": index} if self._keeps_logits else {}),
        )
        logits: torch.Tensor = outputs.logits
        return logits if self._keeps_logits else logits[:, index]

    def _masks(self, layout: PassLayout, slots: int) -> Any:
        """A float mask [batch, 1, width, slots]; one per kind of layer where kinds differ.

        Float, because eager attention adds the mask, and a boolean one would be added silently.
        """
        masks = {}
        for kind, window in self._windows.items():
            visible = torch.from_numpy(layout.visible(slots, window)).to(self.device)
            mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
            mask.masked_fill_(~visible, torch.finfo(self.model.dtype).min)
            masks[kind] = mask[:, None]
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _inputs(self, tokens: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(tokens).to(self.device)
        largest = int(tokens.max())
        if largest < self.vocab_size:
            return {"input_ids": ids}
        if self._virtual is None:
            raise UsageError(
                "the tree holds virtual token ids, but this target was given no embeddings for "
                "them: pass virtual_embeddings"
            )
        if largest >= self.vocab_size + len(self._virtual):
            raise UsageError(
                f"the tree holds the virtual token id {largest}, but embeddings were given for "
                f"{len(self._virtual)} ids from {self.vocab_size} on: pass more"
            )
        virtual = ids >= self.vocab_size
        embeddings = self.model.get_input_embeddings()(ids.masked_fill(virtual, 0))
        own = self._virtual.to(embeddings)[(ids - self.vocab_size).clamp(min=0)]
        return {"inputs_embeds": torch.where(virtual[..., None], own, embeddings)}
