"""Run each of a target's passes in one call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from paceline.errors import UsageError
from paceline.kernels.attention import GROUPED
from paceline.kernels.native.calls import unavailable
from paceline.kernels.programs.early_selection import select_early
from paceline.kernels.programs.program import CacheLayer, PassTexts, Program
from paceline.kernels.programs.steps import Lowered, Op
from paceline.targets.cache_dtypes import CACHE_DTYPES, FLOAT32
from paceline.targets.kv_cache import TreeCache
from paceline.targets.layout import TextRows
from paceline.targets.one_call.chain_pass import ChainPass
from paceline.targets.one_call.lowering import lower
from paceline.targets.one_call.recording import UnfitError, record, unfit_if_it_fails
from paceline.targets.pass_inputs import Windows
from paceline.targets.virtual_tokens import VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["CompiledPass", "UnfitError", "compiled", "kept_outputs"]


def compiled(model: PreTrainedModel, windows: Windows) -> Lowered:
    """Compile `model` to steps. windows: see `attention_windows`. Raises UnfitError, naming the
    reason, for a model that cannot be compiled."""
    if why := unavailable():
        raise UnfitError(why)
    if model.config._attn_implementation != GROUPED:
        raise UnfitError("it does not run on paceline's layers and attention")
    if model.dtype != torch.float32:
        raise UnfitError(f"it computes in {str(model.dtype).removeprefix('torch.')}, not float32")
    with unfit_if_it_fails("it cannot be recorded"):
        return lower(model, record(model, windows))


def kept_outputs(steps: Lowered, layers: Sequence[int]) -> Lowered:
    """Return steps that keep the outputs of these layers side by side, see `Target.keep_states`.
    Raises UsageError for a layer the model does not have."""
    found = [
        replace(step, at=layers.index(step.layer) * step.count) if step.op == Op.STATES else step
        for step in steps.steps
        if step.op != Op.STATES or step.layer in layers
    ]
    there = {step.layer for step in found if step.op == Op.STATES}
    if missing := [each for each in layers if each not in there]:
        raise UsageError(
            f"the model does not expose the output of layer {missing[0]}: choose another method"
        )
    return Lowered(found, steps.logits, steps.tables)


class CompiledPass:
    """Runs the steps of a model without the model, see `compiled`.

    virtual: the embeddings of ids beyond the vocabulary. windows: see `attention_windows`.
    cache_dtype: one of `CACHE_DTYPES`; may change while caches are new.
    """

    def __init__(self, steps: Lowered, virtual: VirtualTokens, windows: Windows) -> None:
        self.steps = steps
        self._windows = tuple(windows.values())
        self.keep_outputs(())
        self.cache_dtype = FLOAT32
        self._virtual = virtual
        self._moves = -1

    def run(self, texts: Sequence[TextRows], windows: Windows, cache: TreeCache) -> torch.Tensor:
        """Run one pass; logits [rows, vocabulary] of the scored texts, see `TextRows`."""
        self.use_cache(cache)
        each, tokens, parents = array("q"), array("q"), array("q")
        kept = positions = 0
        for text in texts:
            tree, pending = text.tree, text.pending
            nodes, read = len(tree), len(pending)
            each.extend((text.start, text.cached, read, nodes, text.scored))
            tokens.extend(pending)
            if nodes:
                tokens.extend(tree.as_read)
                parents.extend(tree.parents)
            kept += text.scored * (1 + nodes)
            positions = max(positions, text.cached + read + nodes)
        said = PassTexts(each, tokens, parents, kept, positions, self._virtual.table)
        states = cache.all_states() if cache.keeps_states else None
        return self._program.run(said, tuple(windows.values()), states)

    def chain(self, cache: TreeCache) -> tuple[ChainPass, torch.Tensor | None]:
        """Passes over one text in this cache, and where their last hidden states go."""
        self.use_cache(cache)
        return self._chain, cache.all_states() if cache.keeps_states else None

    def keep_outputs(self, layers: Sequence[int]) -> None:
        """Keep the outputs of these layers from now on, see `Target.keep_states`. Raises UsageError
        for a layer the model does not have."""
        steps = select_early(kept_outputs(self.steps, layers))
        self._program, self._chain = Program(steps), ChainPass(steps, self._windows)
        self._known: TreeCache | None = None  # the cache in use, as of `_moves`

    def use_cache(self, cache: TreeCache) -> None:
        """Read and write this cache from now on; allocates its memory if it has none."""
        if self._known is cache and self._moves == cache.moves:
            return
        dtype = CACHE_DTYPES[self.cache_dtype]
        cache.allocate(self._program.layers, dtype)
        layers = [CacheLayer(*each) for each in cache.tensors()]
        self._program.use_cache(layers, dtype.number)
        self._chain.use_cache(layers, dtype.number)
        # Last: after a failure midway, the next pass must not read memory that has moved.
        self._known, self._moves = cache, cache.moves
