"""Any decoder-only causal language model of transformers as a target.

The model's own `forward` runs, with a cache of ours, explicit positions and a 4-D float mask, so
no architecture is re-implemented and `device_map`, quantised weights and tensor parallelism keep
working. On a CPU passes run in one call each where the model is fit for that, see `one_call`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from paceline.protocols import HIDDEN_STATES, SHADOW_TOKENS, TREES, VIRTUAL_TOKENS, Target
from paceline.records import Path, TargetInfo
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.check_passes import check_passes
from paceline.targets.hidden_states import output_head
from paceline.targets.layout import (
    STATIC_WIDTHS,
    PassLayout,
    TextRows,
    padded_width,
    static_slots,
)
from paceline.targets.model_pass import ModelPass
from paceline.targets.prepare import Preparation
from paceline.targets.static_pass import StaticPasses, on_one_gpu
from paceline.targets.support import (
    attention_windows,
    check_supported,
    longest_context,
)
from paceline.targets.text_slots import KEPT_BYTES, TextSlots
from paceline.targets.virtual_tokens import VirtualTokens
from paceline.targets.weights import slot_grain, weight_bytes
from paceline.tree import EMPTY, Tree

__all__ = ["CausalLMTarget"]

PREFILL_CHUNK = 1024

# Slots that passes of static shape find reserved: what was captured is lost when the cache has to
# move.
STATIC_ROOM = 2048

# The same on a CPU, which takes no memory for slots before they are written: a pool that moves takes
# longer than many passes.
_LAZY_ROOM = 16384

# Pending tokens per text up to which a pass may have a static shape: its root and what a draft
# model, which is a target of its own, lags behind. Passes that read a prompt seldom come twice in
# one shape.
_FEW_PENDING = 4


class CausalLMTarget(Target):
    """Drives `model` through the `Target` contract.

    model: a decoder-only causal LM in evaluation mode, on any device or devices.
    preparation: what `prepare` did to the model, for reports.
    check: compare a tree pass with the model's plain forward first (some tens of milliseconds
    for a small model).
    static: run passes that recur in few shapes on inputs that keep their place, captured as CUDA
    graphs where the device is one; None where the whole model is on one CUDA device.
    compiled: run passes in one call each where the model is fit for that.
    kept_bytes: of the cache of closed texts, kept for texts that begin alike.
    cache_dtype: of keys and values, one of `CACHE_DTYPES`.

    Raises ModelError, naming the reason, where the model cannot be driven this way, UsageError
    where its cache cannot be held in another form.
    """

    capabilities = frozenset({HIDDEN_STATES, SHADOW_TOKENS, TREES, VIRTUAL_TOKENS})

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        preparation: Preparation | None = None,
        check: bool = True,
        static: bool | None = None,
        compiled: bool = True,
        kept_bytes: int = KEPT_BYTES,
        cache_dtype: str = FLOAT32,
    ) -> None:
        check_supported(model)
        self.model = model
        self.preparation = preparation or Preparation()
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_context = longest_context(config)
        self._virtual = VirtualTokens(model.get_input_embeddings(), self.vocab_size)
        self._hidden_size = 0  # of the states that are kept
        self._kept_bytes = kept_bytes
        self.static = on_one_gpu(model) if static is None else static
        self._passes: StaticPasses | None
        self._texts = self._new_texts()
        windows = attention_windows(config)
        self._pass = ModelPass(model, self._virtual, windows, self._texts.cache)
        self._pass.by_text &= not self.static
        self._new_passes()
        if compiled:
            self._pass.compile()
        if check:
            try:
                check_passes(self, self._pass, model)
            finally:
                self._forget_all()
        self._pass.hold_in(cache_dtype)  # after the check: rounding is no error

    def describe(self) -> TargetInfo:
        """See `Target.describe`. "graphs" in its report says what became of static shapes, see
        `StaticPasses.as_json`; "own_forward" why passes are not run in one call, "" where they
        are; "cache" what keys and values are held in, and bytes per token once there are any."""
        graphs = {"static": self.static, **(self._passes.as_json() if self._passes else {})}
        return TargetInfo(
            type(self.model).__name__,
            str(self.device),
            str(self.model.dtype).removeprefix("torch."),
            self.preparation.weights,
            weight_bytes(self.model),
            {
                "preparation": self.preparation.as_json(),
                "graphs": graphs,
                "own_forward": self._pass.own_forward,
                "cache": {
                    "dtype": self._pass.cache_dtype,
                    "slot_bytes": self._texts.cache.slot_bytes,
                },
            },
        )

    def settle(self) -> None:
        """See `Target.settle`."""
        self.preparation.settle()

    @property
    def device(self) -> torch.device:
        """Where inputs go, see `ModelPass.device`."""
        return self._pass.device

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """The id of the first of `embeddings` [count, hidden]. See `Target`."""
        known = len(self._virtual)
        first = self._virtual.add(embeddings, self.device)
        if len(self._virtual) != known and self.static:
            self._new_passes()  # they had another table
        return first

    def keep_states(self) -> None:
        """See `Target.keep_states`."""
        if not self._hidden_size:
            self._hidden_size = self.model.config.get_text_config().hidden_size
            self._forget_all()

    def states(self, slot: int) -> torch.Tensor:
        """[cached tokens, hidden]. See `Target.states`."""
        return self._texts.states(slot)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., hidden]. See `Target.embed`."""
        embeddings: torch.Tensor = self.model.get_input_embeddings()(tokens.to(self.device))
        return embeddings

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, hidden] and [n]. See `Target.output_head`."""
        return output_head(self.model, tokens)

    @torch.inference_mode()
    def open(self, context: Sequence[int]) -> int:
        """See `Target.open`. Nothing is read yet."""
        return self._texts.open(context)

    def close(self, slot: int) -> None:
        """See `Target.close`."""
        self._texts.close(slot)

    def forget(self) -> None:
        """See `Target.forget`."""
        self._texts.forget()

    def pending(self, slot: int) -> int:
        """See `Target.pending`."""
        return len(self._texts[slot].pending) - 1

    @torch.inference_mode()
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Logits [len(tree) + 1, vocab_size] per tree. See `Target.score`.

        Prompts of more than a thousand tokens are read in chunks first.
        """
        self._virtual.check(max((max(t.as_read, default=0) for t in trees.values()), default=0))
        for slot in trees:
            while self.pending(slot) >= PREFILL_CHUNK:
                self._play({}, {slot: PREFILL_CHUNK})
        pieces = {slot: min(most, self.pending(slot)) for slot, most in (prefill or {}).items()}
        pieces = {slot: piece for slot, piece in pieces.items() if piece > 0}
        return self._play(trees, pieces) if trees or pieces else {}

    @torch.inference_mode()
    def commit(self, paths: Mapping[int, Path]) -> None:
        """Keep the accepted nodes. See `Target.commit`."""
        self._texts.commit(paths)

    def _forget_all(self) -> None:
        """Hold nothing in the cache; texts that are open are to be read once more."""
        before, self._texts = self._texts, self._new_texts()
        self._texts.take_over(before)
        self._pass.cache, self._pass.keeps_states = self._texts.cache, self._hidden_size > 0
        self._new_passes()

    def _new_texts(self) -> TextSlots:
        return TextSlots(
            self.model.config.get_text_config().num_hidden_layers,
            self._hidden_size,
            slot_grain(self.model),
            self._kept_bytes,
            STATIC_ROOM if self.static else _LAZY_ROOM * (self.model.device.type == "cpu"),
        )

    def _new_passes(self) -> None:
        self._passes = StaticPasses(self._pass.run_static, self.device) if self.static else None

    def _play(
        self, trees: Mapping[int, Tree], pieces: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        """One pass; the logits of every tree, and the pieces are in the cache."""
        jobs = [_Job(slot, self._texts[slot].pending, tree) for slot, tree in trees.items()]
        jobs += [_Job(slot, self._texts[slot].pending[:size]) for slot, size in pieces.items()]
        needed = sum(job.rows for job in jobs)
        passes = self._passes if self._recurs(jobs, needed) else None
        width = padded_width(needed, self._pass.min_rows, static=passes is not None)
        layout = self._lay_out(jobs, width)
        wanted = [
            range(first + len(job.pending) - 1, first + job.rows) if job.tree is not None else ()
            for first, job in zip(layout.firsts, jobs, strict=True)
        ]
        if passes is not None:
            slots = static_slots(sum(text.used for text in layout.texts))
            logits = passes.run(layout, slots, self._texts.cache.moves)
            # The next pass overwrites them, and whoever hears of this round may keep them.
            found = [logits[rows.start : rows.stop].clone() if rows else None for rows in wanted]
        else:
            keep = [row for rows in wanted for row in rows]
            logits = self._pass.run(layout, keep, self._texts.slots)
            found, begin = [], 0
            for rows in wanted:
                found.append(logits[begin : begin + len(rows)])
                begin += len(rows)
        for slot, size in pieces.items():
            self._texts[slot].have_read(size)
        return {
            job.slot: rows
            for job, rows in zip(jobs, found, strict=True)
            if job.tree is not None and rows is not None
        }

    def _lay_out(self, jobs: Sequence[_Job], width: int) -> PassLayout:
        """The rows of a pass, with room for all of them in the cache."""
        padding = max(0, width - sum(job.rows for job in jobs))
        rows = {job.slot: job.rows for job in jobs}
        self._texts.make_room({**rows, jobs[-1].slot: jobs[-1].rows + padding})
        texts = []
        for job in jobs:
            text = self._texts[job.slot]
            text.tree_at = text.start + len(text.cached) + len(job.pending)
            texts.append(TextRows(text.start, len(text.cached), job.pending, job.tree or EMPTY))
        return PassLayout(texts).padded(width)

    def _recurs(self, jobs: Sequence[_Job], rows: int) -> bool:
        """Whether the next pass, which needs so many rows, is run in a static shape."""
        if self._passes is None or not self._passes.usable or rows > STATIC_WIDTHS[-1]:
            return False
        return max(len(job.pending) for job in jobs) <= _FEW_PENDING


@dataclass(frozen=True)
class _Job:
    """What a pass does for one text: read these tokens and, if there is a tree, score it below the
    last of them."""

    slot: int
    pending: Sequence[int] = field(repr=False)
    tree: Tree | None = None

    @property
    def rows(self) -> int:
        """Of the pass, without padding."""
        return len(self.pending) + (0 if self.tree is None else len(self.tree))
