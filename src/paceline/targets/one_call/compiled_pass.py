"""A target's passes in one call each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.kernels.attention import GROUPED
from paceline.kernels.native.calls import unavailable
from paceline.kernels.slots_seen import SlotsSeen
from paceline.targets.cache_dtypes import CACHE_DTYPES, FLOAT32
from paceline.targets.kv_cache import TreeCache
from paceline.targets.layout import PassLayout
from paceline.targets.one_call.lowering import lower
from paceline.targets.one_call.program import CacheLayer, PassRows, Program
from paceline.targets.one_call.recording import UnfitError, record
from paceline.targets.pass_inputs import Windows
from paceline.targets.support import longest_context
from paceline.targets.virtual_tokens import VirtualTokens

__all__ = ["CompiledPass", "UnfitError"]


class CompiledPass:
    """Runs what `model` computes without the model.

    virtual: what ids beyond the vocabulary stand for. windows: see `attention_windows`.

    cache_dtype: of `CACHE_DTYPES`; may change as long as caches are new.

    Raises UnfitError, saying why, for a model that cannot be run so.
    """

    def __init__(self, model: PreTrainedModel, virtual: VirtualTokens, windows: Windows) -> None:
        if unavailable():
            raise UnfitError(unavailable())
        if model.config._attn_implementation != GROUPED:
            raise UnfitError("its layers or its attention are its own, not paceline's")
        if model.dtype != torch.float32:
            raise UnfitError(f"it computes in {str(model.dtype).removeprefix('torch.')}")
        try:
            recording = record(model, windows)
            longest = longest_context(model.config.get_text_config())
            self._program = Program(lower(model, recording, longest))
        except UnfitError:
            raise
        except Exception as error:  # whatever a model's own code raises when it is watched
            reason = str(error).partition("\n")[0]
            raise UnfitError(f"it cannot be recorded ({type(error).__name__}: {reason})") from error
        self.cache_dtype = FLOAT32
        self._virtual = virtual
        self._known: TreeCache | None = None  # as it was before it moved so often
        self._moves = -1

    def run(
        self,
        layout: PassLayout,
        keep: Sequence[int],
        windows: Windows,
        cache: TreeCache,
        keeps_states: bool,
    ) -> torch.Tensor:
        """One pass; the logits [len(keep), vocabulary] of its rows `keep`."""
        if self._known is not cache or self._moves != cache.moves:
            self._moves = cache.moves
            dtype = CACHE_DTYPES[self.cache_dtype]
            cache.allocate(self._program.layers, dtype)
            layers = [CacheLayer(*each) for each in cache.tensors()]
            self._program.use_cache(layers, dtype.number)
            self._known = cache
        rows = PassRows(
            layout.tokens(),
            layout.positions(),
            layout.places().astype(np.int64),
            np.array(keep, dtype=np.int64),
            [SlotsSeen(*layout.stretches(window)) for window in windows.values()],
            self._virtual.table,
        )
        return self._program.run(rows, cache.all_states() if keeps_states else None)
