"""Trees of EAGLE and Chimera that grow in one call of the C library, over the text's own cache."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainEnd
from paceline.drafters.attention_rows import DraftBlock, normal
from paceline.drafters.guesses import FoundTree, Guesses, guesses_of_program
from paceline.drafters.head_module import HeadModule
from paceline.drafters.level_tree import TextLevels
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.builder import GivenRows
from paceline.kernels.programs.program import CacheLayer, PassBuffers, TableAddresses
from paceline.tree import Tree

Floats = NDArray[np.float32]
Seen = Sequence[Sequence[int]]


class BlockPrograms(ABC):
    """The parts of `model` as programs. block: its own.

    rotary: the block's. layers: of the cache, the first of a text's columns in each and the
    step to the next.

    call: drafts with them in the library, for any text, given the address of `one`; None if that is
    unavailable. before, most_fresh: tokens of a text that are read before the new ones, and most
    new ones. most_levels: of a draft. tables, end, found, text: memory that `one` points to.
    """

    model: HeadModule
    layers: Sequence[tuple[int, int]] = ((0, 1),)
    call: Callable[[int], None] | None = None
    one: Any
    most_fresh = 0

    def __init__(self, model: HeadModule, block: DraftBlock) -> None:
        self.model, self._block, self._room = model, block, 0
        self.rotary = block.rotary

    def _allow(
        self, call: Callable[[int], None], one: Any, before: int, most_fresh: int, levels: int
    ) -> None:
        """Let `call` draft, if the library can read the target's embeddings."""
        words = self.model.words
        if words is None:
            return
        self.call, self.one = call, one
        self.before, self.most_fresh, self.most_levels = before, most_fresh, levels
        self.tables, self.end = TableAddresses(self.rotary), NativeEnd()
        self.found = FoundTree(one.guesses, self.model.outputs, self.model.token_ids)
        self.text = (ctypes.c_int64 * (before + most_fresh))()
        one.hidden, one.text = words.hidden, ctypes.addressof(self.text)
        one.words, one.words_format, one.words_count = words.address, words.format, words.count

    def make_room(self, beam: int) -> None:
        """Have memory for the new tokens, the root, and levels of `beam` nodes."""
        rows = max(beam, 1 + self.most_fresh)
        if rows > self._room:
            self._room, self._lent = rows, self._lend(rows)

    @abstractmethod
    def _lend(self, rows: int) -> object:
        """Let `one` find the programs with memory for `rows` rows; returns what must be held."""

    def _store(self, inner: Any, layer: int = 0) -> None:
        """Store the columns of normalised states, `Rows`, in a layer of the cache."""
        self._block.key(inner).turned().store(self._block.value(inner), layer)

    def _outputs(self, states: Any, norm: torch.Tensor, own: int = 0, seen: int = 0) -> Any:
        """The block's outputs. own, seen: layers for the columns of the rows, and that they see."""
        inner = normal(states, norm)
        queries = self._block.query(inner).turned()
        self._store(inner, own)
        attended = queries.attended(seen, self.model.config.kv_heads)
        return self._block.finished(states, attended)


class CalledLevels(TextLevels):
    """Levels that programs compute, or `call` of these grows, over the text's own cache."""

    _programs: BlockPrograms

    def draft(
        self, text: Sequence[int], states: torch.Tensor, budget: int, end: ChainEnd
    ) -> tuple[Tree, int]:
        """See `TextLevels.draft`: in one call, except for prompts and very short texts."""
        by, settings, places = self._programs, self.settings, states.shape[0]
        fresh = places - self.length
        fits = states.dtype == torch.float32 and states.stride(-1) == 1
        if by.call is None:  # then `most_fresh` is 0, and all was read before
            return self.grown(budget, end)
        if not fits or len(text) < by.before + fresh:
            self.read(text, states)
            return self.grown(budget, end)
        one, depth, count = by.one, min(len(end.least), by.most_levels), by.before + fresh
        self._make_room(self.per_place * (places + depth * settings.beam))
        by.make_room(settings.beam)
        by.tables.extend(one, places + depth)
        by.text[:count] = list(text[len(text) - count :])
        one.depth, one.length, one.fresh = depth, self.length, fresh
        one.beam, one.least = settings.beam, max(settings.least, end.worth)
        one.states, one.states_stride = states.data_ptr(), states.stride(0)
        one.end = by.end.address(end)
        by.found.want(budget, settings.ranks, self.noise)
        self._point(one)
        by.call(ctypes.addressof(one))
        self.length = places
        return by.found.tree(), one.grown

    def _point(self, one: Any) -> None:
        """Point to the memory of this text: texts share `one`."""
        one.layers = ctypes.addressof(self._addresses)

    def _run(
        self, program: GivenRows, numbers: Sequence[Floats], slots: range, seen: Seen | None = None
    ) -> Floats:
        """The output of a program for rows with these numbers [rows, …], side by side. seen:
        columns of the draft that each sees, for nodes; None for rows of the text."""
        count, places = len(slots), np.arange(slots.start, slots.stop)

        def see(rows: PassBuffers) -> None:
            rows.slots[:count] = places
            if seen is None:
                rows.positions[:count], rows.count[:count] = places, places + 1
                return
            rows.positions[:count] = self._places(seen)
            rows.count[:count] = self.per_place * self.length
            begin = 0
            for row, own in enumerate(seen):
                rows.extra[begin : begin + len(own)] = own
                rows.begins[row + 1] = begin = begin + len(own)

        self._make_room(self.per_place * slots.stop)
        program.use_cache(self._layers)
        np.concatenate(numbers, axis=1, out=program.given(count))
        return program.run(count, slots.stop, see)

    def _likeliest_of(self, program: GivenRows, count: int, level: int) -> Guesses:
        """Guesses by the logits that a program has just computed for `count` nodes of a level."""
        ids, noise = self._model.token_list, self._noise_at(level)
        return guesses_of_program(program, count, self.settings.ranks, ids, noise)

    def _moved(self) -> None:
        self._programs = programs = self._model.programs
        self.most_fresh = programs.most_fresh
        keys, values = self._held
        self._layers = layers = [
            CacheLayer(keys[:, :, begin::step], values[:, :, begin::step])
            for begin, step in programs.layers
        ]
        self._addresses = (native.Layer * len(layers))(*(layer.as_native() for layer in layers))
