"""Chimera's drafts, grown level by level: by the modules themselves, or as programs of a few calls.

On a CPU a level is one call of the C library and a search for the likeliest tokens (see
`paceline.kernels.programs.builder`); module by module, the operators of torch take longer to be
called than to compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.drafters.context_encoder import EPSILON, ROTARY_BASE, Context, Draft
from paceline.drafters.guesses import Guesses, likeliest_guesses
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.programs.buffers import PassBuffers
from paceline.kernels.programs.builder import Builder, Columns, GivenRows, Rotary, layer_of
from paceline.kernels.programs.program import CacheLayer
from paceline.kernels.programs.steps import Function, Join, Operand

if TYPE_CHECKING:
    from paceline.drafters.chimera_model import ChimeraModel, NgramEncoder

__all__ = ["ChimeraPrograms", "Levels", "ModuleLevels", "ProgramLevels"]

_AT_ONCE = 256  # rows; memory for so many is kept
# Layers of the cache: all slots, and every other one of them.
_ALL, _GREEN, _MATURE = range(3)


class Levels(ABC):
    """What is kept of one text, and a draft below it.

    length: tokens that the target has read.
    """

    length: int

    @abstractmethod
    def extend(self, matures: torch.Tensor, greens: torch.Tensor) -> None:
        """See `Context.extend`."""

    @abstractmethod
    def begin(self) -> None:
        """A new draft: its first node is the root, at depth 0."""

    @abstractmethod
    def grow(
        self,
        depth: int,
        mature: torch.Tensor,
        greens: torch.Tensor,
        parents: Sequence[int],
        ranks: int,
    ) -> Guesses:
        """Add the nodes of the next level and guess behind them.

        mature: [hidden], of the last token that the target has read. greens, parents: see
        `Draft.grow`. ranks: likeliest tokens behind each node.
        """


class ModuleLevels(Levels):
    """The modules of `model` one after the other. capacity: see `Context`."""

    def __init__(self, model: ChimeraModel, capacity: int) -> None:
        self._model = model
        self._context = Context(model.encoder, capacity)
        self._draft = Draft(self._context)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Tokens that the target has read."""
        return self._context.length

    def extend(self, matures: torch.Tensor, greens: torch.Tensor) -> None:
        """See `Context.extend`."""
        self._context.extend(matures, greens)

    def begin(self) -> None:
        """See `Levels.begin`."""
        self._draft = Draft(self._context)

    def grow(
        self,
        depth: int,
        mature: torch.Tensor,
        greens: torch.Tensor,
        parents: Sequence[int],
        ranks: int,
    ) -> Guesses:
        """See `Levels.grow`."""
        states = self._draft.grow(greens, parents)
        return self._model.guess(depth, mature, states, ranks)


class ChimeraPrograms:
    """The parts of `model` as programs, with layers of this kind.

    bottom: its n-gram encoder. heads: what each of its compact heads reads the two states with.

    green: n-grams' embeddings [n, order * hidden] -> green states. read: mature and green states
    side by side -> columns in the cache. levels: by depth, green states and the last mature one side
    by side -> logits, and columns in the cache.

    Raises UnpackableError for a kind that cannot be had here.
    """

    def __init__(
        self,
        model: ChimeraModel,
        bottom: NgramEncoder,
        heads: Sequence[torch.Tensor],
        kind: type[BlockLinear],
    ) -> None:
        config, encoder = model.config, model.encoder
        self._model, self._hidden = model, model.hidden_size
        self._rotary = Rotary(config.head_size, ROTARY_BASE)
        self._keys = config.kv_heads * config.head_size
        self._queries = config.attention_heads * config.head_size
        self._columns = layer_of(kind, [encoder.key.weight, encoder.value.weight])
        attention = [encoder.query.weight, encoder.key.weight, encoder.value.weight]
        self._attention = layer_of(kind, attention)
        self._join = layer_of(kind, [encoder.join.weight])
        self._gates = layer_of(kind, [encoder.gate.weight, encoder.up.weight])
        self._down = layer_of(kind, [encoder.down.weight])
        self._head = model.shared_layer(kind)
        self.green = self._built_green(bottom, kind)
        self.read = self._built_read()
        self.levels = [
            self._built_level(layer_of(kind, [weight]), depth + 1 == len(heads))
            for depth, weight in enumerate(heads)
        ]

    def encoded(self, words: torch.Tensor) -> torch.Tensor:
        """N-grams' embeddings [n, order * hidden] -> green states [n, hidden]."""
        parts = []
        for some in torch.split(words, _AT_ONCE):
            self.green.given(len(some))[:] = some.numpy()
            parts.append(self.green.run(len(some)).copy())
        return torch.from_numpy(np.concatenate(parts))

    def _built_green(self, bottom: NgramEncoder, kind: type[BlockLinear]) -> GivenRows:
        build = Builder(bottom.order * self._hidden)
        block = layer_of(kind, [bottom.block.weight], bottom.block.bias)
        changed = build.product(build.given, block)
        words = build.map(changed, Join.PLUS, build.given, Function.SILU)
        return build.program(build.product(words, layer_of(kind, [bottom.down.weight])))

    def _built_read(self) -> GivenRows:
        build, hidden = Builder(2 * self._hidden, self._rotary), self._hidden
        for layer, at, norm in (
            (_MATURE, 0, self._model.encoder.mature_norm),
            (_GREEN, hidden, self._model.encoder.green_norm),
        ):
            self._store(build, build.part(build.given, at, hidden), norm, layer)
        return build.program()

    def _store(self, build: Builder, states: Operand, norm: torch.Tensor, layer: int) -> None:
        both = build.product(build.normal(states, norm, EPSILON), self._columns)
        keys = build.turned(build.part(both, 0, self._keys))
        build.store(keys, build.part(both, self._keys, self._keys), self._to(layer))

    def _built_level(self, head: BlockLinear, last: bool) -> GivenRows:
        encoder, hidden, keys = self._model.encoder, self._hidden, self._keys
        build = Builder(2 * hidden, self._rotary)
        green = build.part(build.given, 0, hidden)
        mature = build.part(build.given, hidden, hidden)
        three = build.product(build.normal(green, encoder.green_norm, EPSILON), self._attention)
        queries = build.turned(build.part(three, 0, self._queries))
        own = build.turned(build.part(three, self._queries, keys))
        build.store(own, build.part(three, self._queries + keys, keys), self._to(_GREEN))
        attended = build.product(build.attended(queries, self._to(_ALL)), self._join)
        states = build.map(attended, Join.PLUS, green)
        inner = build.normal(states, encoder.inner_norm, EPSILON)
        gates, size = build.product(inner, self._gates), self._model.config.intermediate
        gate, up = build.part(gates, 0, size), build.part(gates, size, size)
        gated = build.map(gate, Join.TIMES, up, Function.SILU)
        draft = build.map(build.product(gated, self._down), Join.PLUS, states)
        if not last:
            self._store(build, draft, encoder.mature_norm, _MATURE)
        read = build.beside(mature, draft) if self._model.config.residual else draft
        return build.program(build.product(build.product(read, head), self._head))

    def _to(self, layer: int) -> Columns:
        return Columns(layer, self._model.config.kv_heads, self._model.config.head_size)


class ProgramLevels(Levels):
    """Programs over a cache of the text's own.

    capacity: tokens that there is room for at first.

    Slot 2n of the cache is the mature (or draft) column of place n, slot 2n + 1 its green one, and
    nodes have places behind the text, in the order in which they come.
    """

    def __init__(self, programs: ChimeraPrograms, model: ChimeraModel, capacity: int) -> None:
        self.length = 0
        self._programs = programs
        self._token_ids = model.token_ids
        config, room = model.config, max(capacity, 1) + 64
        shape = (1, config.kv_heads, 2 * room, config.head_size)
        self._held = torch.zeros(2, *shape)
        self._layers = _layers_of(self._held)
        self._sees: list[list[int]] = []  # behind the text, by node: slots of it and those above

    def extend(self, matures: torch.Tensor, greens: torch.Tensor) -> None:
        """See `Context.extend`."""
        for some, own in zip(
            torch.split(matures, _AT_ONCE), torch.split(greens, _AT_ONCE), strict=True
        ):
            if len(some):
                self._extend(some, own)

    def _extend(self, matures: torch.Tensor, greens: torch.Tensor) -> None:
        count = len(matures)
        end = self.length + count
        self._make_room(end)
        program, hidden = self._programs.read, matures.shape[1]
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, :hidden], given[:, hidden:] = matures.float().numpy(), greens.numpy()

        def see(rows: PassBuffers) -> None:
            rows.positions[:count] = rows.slots[:count] = np.arange(self.length, end)

        program.run(count, end, see)
        self.length = end

    def begin(self) -> None:
        """See `Levels.begin`."""
        self._sees = []

    def grow(
        self,
        depth: int,
        mature: torch.Tensor,
        greens: torch.Tensor,
        parents: Sequence[int],
        ranks: int,
    ) -> Guesses:
        """See `Levels.grow`."""
        count, first = len(parents), self.length + len(self._sees)
        self._make_room(first + count)
        for place, parent in enumerate(parents, start=first):
            above = [] if parent < 0 else self._sees[parent]
            self._sees.append([*above, 2 * place, 2 * place + 1])
        position, seen = self.length + depth, self._sees[-count:]

        def see(rows: PassBuffers) -> None:
            rows.positions[:count], rows.count[0, :count] = position, 2 * self.length
            begin = 0
            for row, slots in enumerate(seen):
                end = begin + len(slots) - 1
                rows.slots[row] = first + row
                # Its own draft state is not known yet.
                rows.extra[0, begin:end] = [*slots[:-2], slots[-1]]
                rows.begins[0, row + 1] = begin = end

        program, hidden = self._programs.levels[depth], len(mature)
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, :hidden], given[:, hidden:] = greens.numpy(), mature.float().numpy()
        logits = program.run(count, position + 1, see)
        return likeliest_guesses(logits, ranks, self._token_ids)

    def _make_room(self, places: int) -> None:
        room = self._held.shape[3]
        if 2 * places > room:
            wider = torch.zeros(*self._held.shape[:3], 4 * places, self._held.shape[4])
            wider[:, :, :, :room] = self._held
            self._held, self._layers = wider, _layers_of(wider)


def _layers_of(held: torch.Tensor) -> list[CacheLayer]:
    keys, values = held
    return [
        CacheLayer(keys[:, :, begin::step], values[:, :, begin::step])
        for begin, step in ((0, 1), (1, 2), (0, 2))
    ]
