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
from paceline.drafters.guesses import FoundTree
from paceline.drafters.head_module import HeadModule
from paceline.drafters.level_tree import TextLevels
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.builder import GivenRows
from paceline.kernels.programs.program import CacheLayer, PassBuffers, TableAddresses
from paceline.kernels.slots_seen import can_attend
from paceline.records import WordTable
from paceline.tree import Tree

Floats = NDArray[np.float32]


class BlockPrograms(ABC):
    """The parts of `model` as programs. block: its own. words: the target's embeddings.

    rotary: the block's. layers: of the cache, the first of a text's columns in each and the
    step to the next.

    call: drafts with them in the library, for any text, given the address of `one`. before: tokens
    of a text that are read before the new ones. most_fresh, most_levels: new tokens and levels of a
    draft, at most. tables, end, found, text: memory that `one` points to.
    """

    model: HeadModule
    layers: Sequence[tuple[int, int]] = ((0, 1),)
    before = 0
    most_fresh: int
    most_levels: int

    def __init__(
        self,
        model: HeadModule,
        block: DraftBlock,
        words: WordTable,
        one: Any,
        call: Callable[[int], None],
    ) -> None:
        self.model, self._block, self._words, self._room = model, block, words, 0
        self.rotary, self.one, self.call = block.rotary, one, call
        self.tables, self.end = TableAddresses(self.rotary), NativeEnd()
        self.found = FoundTree(one.guesses, model.outputs, model.token_ids)
        self.text = (ctypes.c_int64 * (self.before + self.most_fresh))()
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

    def embedded(self, rows: Any) -> Any:
        """The embeddings of tokens by `Rows` of the table."""
        scale = self._words.scale
        return rows if scale == 1.0 else rows * torch.tensor([scale], device="cpu")

    def rows_of(self, embeddings: torch.Tensor) -> Floats:
        """The inverse, of numbers."""
        found: Floats = (embeddings.float() / self._words.scale).numpy()
        return found

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


def words_for(model: HeadModule) -> WordTable | None:
    """The embeddings that the library reads when it drafts with this model; None if it cannot."""
    attends = can_attend(model.config.attention_heads, model.config.kv_heads)
    return model.words if attends else None


class CalledLevels(TextLevels):
    """Drafts that `call` of programs grows, over the text's own cache."""

    _programs: BlockPrograms

    def draft(
        self, text: Sequence[int], states: torch.Tensor, budget: int, end: ChainEnd
    ) -> tuple[Tree, int]:
        by, settings, one, places = self._programs, self.settings, self._programs.one, len(states)
        if len(text) < by.before + places - self.length:
            self.read(text, states)  # its first tokens have no whole n-gram
        depth, fresh = min(len(end.least), by.most_levels), places - self.length
        if len(text) < by.before:
            depth = 1  # the library continues whole n-grams only
        count = by.before + fresh
        self._make_room(self.per_place * (places + depth * settings.beam))
        by.make_room(settings.beam)
        by.tables.extend(one, places + depth)
        said = list(text[max(0, len(text) - count) :])
        by.text[:count] = [*said, *said[-1:] * (count - len(said))]
        one.depth, one.length, one.fresh = depth, self.length, fresh
        one.beam, one.least = settings.beam, max(settings.least, end.worth)
        begin = 0
        if states.dtype != torch.float32 or states.stride(-1) != 1:
            begin = max(0, self.length - 1)  # no earlier ones are read
            states = states[begin:].float().contiguous()
        one.states_stride = states.stride(0)
        one.states = states.data_ptr() - begin * states.stride(0) * states.element_size()
        one.end = by.end.address(end)
        by.found.want(budget, settings.ranks, self.noise)
        self._point(one)
        by.call(ctypes.addressof(one))
        self.length = places
        return by.found.tree(), one.grown

    def _point(self, one: Any) -> None:
        """Point to the memory of this text: texts share `one`."""
        one.layers = ctypes.addressof(self._addresses)

    def _run(self, program: GivenRows, numbers: Sequence[Floats]) -> Floats:
        """Take over the next tokens of the text by a program; returns its output. numbers: of these
        rows [rows, …], side by side."""
        count, end = len(numbers[0]), self.length + len(numbers[0])

        def see(rows: PassBuffers) -> None:
            rows.slots[:count] = rows.positions[:count] = places = np.arange(self.length, end)
            rows.count[:count] = places + 1

        self._make_room(self.per_place * end)
        program.use_cache(self._layers)
        np.concatenate(numbers, axis=1, out=program.given(count))
        found = program.run(count, end, see)
        self.length = end
        return found

    def _moved(self) -> None:
        self._programs = programs = self._model.programs
        self.most_fresh = programs.most_fresh
        keys, values = self._held
        self._layers = layers = [
            CacheLayer(keys[:, :, begin::step], values[:, :, begin::step])
            for begin, step in programs.layers
        ]
        self._addresses = (native.Layer * len(layers))(*(layer.as_native() for layer in layers))
