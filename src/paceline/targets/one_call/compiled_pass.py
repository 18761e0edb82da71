"""Run each of a target's passes in one call."""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainFound, ChainRequest
from paceline.errors import UsageError
from paceline.kernels.attention import GROUPED
from paceline.kernels.autocast import autocast_dtype
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.programs.early_selection import select_early
from paceline.kernels.programs.program import CacheLayer, Program
from paceline.kernels.programs.steps import Lowered, Op
from paceline.kernels.slots_seen import can_attend
from paceline.scores import TokenScores
from paceline.targets.cache_dtypes import CACHE_DTYPES, FLOAT32
from paceline.targets.kv_cache import TreeCache
from paceline.targets.layout import TextRows
from paceline.targets.one_call.lowering import lower
from paceline.targets.one_call.recording import UnfitError, record, unfit_if_it_fails
from paceline.targets.pass_inputs import Windows
from paceline.targets.text_slots import TextSlot
from paceline.targets.virtual_tokens import VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FEW = 64  # numbers


def compiled(model: PreTrainedModel, windows: Windows) -> Lowered:
    """Compile `model` to steps. windows: see `attention_windows`. Raises UnfitError, naming the
    reason, for a model that cannot be compiled."""
    if why := unavailable():
        raise UnfitError(why)
    if model.config._attn_implementation != GROUPED:
        raise UnfitError("it does not run on paceline's layers and attention")
    if model.dtype != torch.float32:
        raise UnfitError(f"it computes in {str(model.dtype).removeprefix('torch.')}, not float32")
    if autocast_dtype(model) is not None:
        raise UnfitError("autocast is on")
    with unfit_if_it_fails("it cannot be recorded"):
        lowered = lower(model, record(model, windows))
    layers = {step.layer for step in lowered.steps if step.op == Op.STORE}
    if layers != {*range(len(layers))}:  # the library counts caches
        raise UnfitError("its attention layers are not numbered from 0 on")
    for step in lowered.steps:
        if step.op == Op.ATTEND and not can_attend(step.heads, step.key_heads):
            together = step.heads // step.key_heads
            raise UnfitError(f"{together} of its query heads share one head of keys, too many")
    return lowered


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
    return replace(steps, steps=found)


class CompiledPass:
    """Runs the steps of a model without the model.

    steps: see `compiled`. virtual: the embeddings of ids beyond the vocabulary. windows: see
    `attention_windows`.

    cache_dtype: one of `CACHE_DTYPES`; may change while caches are new.
    """

    def __init__(self, steps: Lowered, virtual: VirtualTokens, windows: Windows) -> None:
        self.steps = steps
        self.cache_dtype = FLOAT32
        self._virtual = virtual
        self._moves = -1
        self._one, self._texts = native.Pass(), native.Texts()
        self._own_windows = windows  # a check may run passes with narrower ones
        self._use_windows(windows)
        self.keep_outputs(())

    def run(self, texts: Sequence[TextRows], windows: Windows, cache: TreeCache) -> torch.Tensor:
        """Run one pass; logits [rows, vocabulary] of the scored texts, see `TextRows`."""
        self.use_cache(cache)
        if windows is not self._windows:
            self._use_windows(windows)
        each, tokens, parents = array("q"), array("q"), array("q")
        kept = positions = 0
        for text in texts:
            tree, pending = text.tree, text.pending
            nodes, read = len(tree), len(pending)
            # `pl_text`: the first slot of its stretch, how many of those slots hold tokens, how many
            # pending tokens and nodes it reads, and whether their logits are wanted.
            each.extend((text.start, text.cached, read, nodes, text.scored))
            tokens.extend(pending)
            if nodes:
                tokens.extend(tree.as_read)
                parents.extend(tree.parents)
            kept += text.scored * (1 + nodes)
            positions = max(positions, text.cached + read + nodes)
        one, said, given = self._one, self._texts, self._virtual.table
        logits = torch.empty(kept, self._program.vocabulary, dtype=torch.float32, device="cpu")
        one.rows, one.kept, one.logits = len(tokens), kept, logits.data_ptr()
        if given is not None:
            one.given_count, one.given = given.shape[0], given.data_ptr()
        said.count = len(texts)
        said.each, said.tokens = each.buffer_info()[0], tokens.buffer_info()[0]
        said.parents = parents.buffer_info()[0]
        kernels().run_texts(*self._program.ready(one, positions), ctypes.addressof(said))
        return logits

    def _use_windows(self, windows: Windows) -> None:
        self._windows = windows
        self._window_slots = _window_slots(windows)
        self._texts.kinds = len(windows)
        self._texts.windows = ctypes.addressof(self._window_slots)

    def chain(self, cache: TreeCache) -> ChainPass:
        """Passes over one text in this cache."""
        self.use_cache(cache)
        return self._chain

    def keep_outputs(self, layers: Sequence[int]) -> None:
        """Keep the outputs of these layers and no others, see `Target.keep_states`."""
        steps = select_early(kept_outputs(self.steps, layers))
        self._program, self._chain = Program(steps), ChainPass(steps, self._own_windows)
        self._known: TreeCache | None = None  # the cache in use, as of `_moves`

    def use_cache(self, cache: TreeCache) -> None:
        """Read and write this cache from now on; allocates its memory if it has none."""
        if self._known is cache and self._moves == cache.moves:
            return
        dtype = CACHE_DTYPES[self.cache_dtype]
        cache.allocate(self._program.layers, dtype)
        layers = [CacheLayer(*each) for each in cache.tensors()]
        states = cache.all_states() if cache.keeps_states else None
        for program in (self._program, self._chain.program):
            program.use_cache(layers, dtype.number, states)
        # Last: after a failure midway, the next pass must not read memory that has moved.
        self._known, self._moves = cache, cache.moves


class ChainPass:
    """Scores the next token of one text at a time, with little overhead beyond the call itself.

    An output head that scores only some tokens is not scattered over the whole vocabulary here, and
    consecutive passes reuse the same descriptors.

    lowered: the model. windows: of its kinds of layers. program: needs a cache, see
    `CompiledPass.use_cache`.
    """

    def __init__(self, lowered: Lowered, windows: Windows) -> None:
        self._tokens: NDArray[np.int64] | None = None
        last = lowered.steps[-1]
        said = last.of[0].value if last.op == Op.SCATTER else None
        if said is not None and last.order is not None:
            self._tokens = last.order.numpy().astype(np.int64) - 1
            lowered = Lowered(lowered.steps[:-1], said, lowered.tables)
        self.program = Program(lowered)
        self._windows = _window_slots(windows)
        self._scores = np.empty(self.program.vocabulary, dtype=np.float32)
        self._one = native.Pass(logits=self._scores.ctypes.data, kept=1)
        self._chain = native.Chain(
            kinds=len(windows),
            windows=ctypes.addressof(self._windows),
            ids=None if self._tokens is None else self._tokens.ctypes.data,
        )
        self._end = NativeEnd()
        self._make_room(_FEW)

    def run(self, text: TextSlot) -> TokenScores:
        """Run one pass over a text's pending tokens. Returns the scores of the token after them, a
        view that the next pass overwrites."""
        self._chain.most = 0
        self._play(text, 1)
        return TokenScores(self._scores, self._tokens)

    def run_on(self, text: TextSlot, wanted: ChainRequest) -> ChainFound:
        """Like `run`, then passes over the likeliest token of the previous one, in one call."""
        chain, known = self._chain, wanted.known
        if self._tokens is not None and known <= self._tokens[-1]:
            known = bisect_left(self._tokens, known)
        chain.numbers = known = min(known, len(self._scores))
        chain.most = most = min(wanted.most, known)
        if wanted.passes * most > len(self._found):
            self._make_room(wanted.passes * most)
        chain.end = None if wanted.end is None else self._end.address(wanted.end)
        self._play(text, wanted.passes)
        passes = chain.made
        tokens, shares = self._found[: passes * most], self._shares[: passes * most]
        ends = range(most, passes * most + 1, most)
        ranked = [[*zip(tokens[end - most : end], shares[end - most : end])] for end in ends]
        return ChainFound(ranked, self._seconds[:passes])

    def _play(self, text: TextSlot, passes: int) -> None:
        rows, cached, chain = len(text.pending), len(text.cached), self._chain
        if rows + passes > len(self._reads):
            self._make_room(rows + passes)
        self._reads[:rows] = [*text.pending]
        chain.start, chain.cached, chain.count = text.start, cached, passes
        self._one.rows = rows
        of_pass = self.program.ready(self._one, cached + rows + passes - 1)
        kernels().run_chain(*of_pass, ctypes.addressof(chain))

    def _make_room(self, numbers: int) -> None:
        reads, found = (ctypes.c_int64 * (2 * numbers))(), (ctypes.c_int64 * (2 * numbers))()
        shares, seconds = (ctypes.c_float * (2 * numbers))(), (ctypes.c_double * (2 * numbers))()
        # Held before the library knows them, and the old ones until then: this may be interrupted.
        self._coming = reads, found, shares, seconds
        chain = self._chain
        chain.reads, chain.tokens = ctypes.addressof(reads), ctypes.addressof(found)
        chain.shares, chain.seconds = ctypes.addressof(shares), ctypes.addressof(seconds)
        self._found, self._shares, self._seconds = found, shares, seconds
        self._reads = reads  # last, as its length says how much room there is


def _window_slots(windows: Windows) -> ctypes.Array[ctypes.c_int64]:
    """The windows of the kinds of layers, in order, as the library reads them."""
    return (ctypes.c_int64 * len(windows))(*(window or 0 for window in windows.values()))
