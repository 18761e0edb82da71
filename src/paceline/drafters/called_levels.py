"""Trees of EAGLE and Chimera that grow in one call of the C library, over the text's own cache."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from paceline.chains import ChainEnd
from paceline.drafters.found_trees import FoundTree
from paceline.drafters.head_configs import ChimeraConfig, EagleConfig
from paceline.drafters.level_drafter import TextLevels
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.medusa_heads import HeadModule
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.builder import Rotary, can_attend
from paceline.kernels.programs.program import CacheLayer, TableAddresses
from paceline.records import WordTable
from paceline.tree import Tree

__all__ = ["CalledLevels", "CalledPrograms", "LevelCall", "runs_here"]


def runs_here(config: ChimeraConfig | EagleConfig) -> bool:
    """Whether the library has attention with the heads of these parts."""
    return can_attend(config.attention_heads, config.kv_heads)


class LevelCall(ABC):
    """Memory to draft with the programs of `module` in one call, for any text.

    one: what the library is given. run: the call, which takes its address. words: the target's
    embeddings. rotary: of the programs.

    before, most_fresh: how many tokens of a text are read before the new ones, and most new ones.
    levels: most levels. tables, end, found, text: memory that `one` points to.
    """

    before: int
    most_fresh: int
    levels: int

    def __init__(
        self,
        one: native.Chimera | native.Eagle,
        run: Callable[[int], None],
        module: HeadModule,
        words: WordTable,
        rotary: Rotary,
    ) -> None:
        self.one, self.run = one, run
        self._words = words  # held for the library
        self.tables, self.end = TableAddresses(rotary), NativeEnd()
        self.found = FoundTree(module.outputs, module.token_ids)
        self.text = (ctypes.c_int64 * (self.before + self.most_fresh))()
        one.hidden, one.text = words.hidden, ctypes.addressof(self.text)
        one.words, one.words_format, one.words_count = words.address, words.format, words.count

    @abstractmethod
    def make_room(self, fresh: int, beam: int) -> None:
        """Give the programs memory for `fresh` new tokens and levels of `beam` nodes."""


class CalledPrograms:
    """The parts of a module as programs. call: a draft by them in one call; None if unavailable."""

    call: LevelCall | None = None


class CalledLevels(TextLevels):
    """Levels that `call` of their programs can grow."""

    _programs: CalledPrograms

    def draft(
        self,
        text: Sequence[int],
        states: torch.Tensor,
        budget: int,
        settings: BeamSettings,
        end: ChainEnd,
    ) -> tuple[Tree, int] | None:
        """See `TextLevels.draft`: in one call, except for prompts and very short texts."""
        call, fresh = self._programs.call, len(states) - self.length
        if call is None or fresh > call.most_fresh or len(text) < call.before + fresh:
            return None
        if states.dtype != torch.float32 or states.stride(-1) != 1:
            return None
        one, depth, count = call.one, min(len(end.least), call.levels), call.before + fresh
        self._room_for(len(states) + depth * settings.beam)
        call.make_room(fresh, settings.beam)
        call.tables.extend(one, len(states) + depth)
        call.text[:count] = list(text[len(text) - count :])
        one.depth, one.length, one.fresh = depth, self.length, fresh
        one.beam, one.least = settings.beam, max(settings.least, end.worth)
        one.states, one.states_stride = states.data_ptr(), states.stride(0)
        one.end = call.end.address(end)
        one.guesses = call.found.native(budget, settings.ranks, self.noise)
        self._point(one)
        call.run(ctypes.addressof(one))
        self.length = len(states)
        return call.found.tree(one.guesses.nodes), one.grown

    def _point(self, one: native.Chimera | native.Eagle) -> None:
        """Point to the memory of this text: texts share `one`."""
        one.layers = ctypes.addressof(self._addresses)

    def _hold(self, layers: list[CacheLayer]) -> None:
        """Use these layers of the text's cache from now on."""
        self._layers = layers
        self._addresses = (native.Layer * len(layers))(*(layer.as_native() for layer in layers))

    @abstractmethod
    def _room_for(self, places: int) -> None:
        """Make room for the columns of a text and its draft, `places` together."""
