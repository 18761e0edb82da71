"""A whole draft of Chimera's in one call of the C library: n-grams, columns, levels and the tree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paceline.drafters.found_trees import FoundTree
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.table_addresses import TableAddresses
from paceline.records import WordTable
from paceline.tree import Tree

if TYPE_CHECKING:
    from paceline.drafters.chimera import ChimeraSettings
    from paceline.drafters.chimera_programs import ChimeraPrograms

__all__ = ["MOST_FRESH", "ChimeraCall"]

MOST_FRESH = 8
"""Tokens that are taken over in such a call; a prompt is read in calls of its own."""
_MOST_LEVELS = _MOST_ORDER = 8  # MOST_LEVELS, MOST_ORDER


class ChimeraCall:
    """Drafts with these programs, for any text.

    words: the target's embeddings. token_ids, outputs: see `HeadModule`. order: of n-grams.
    """

    def __init__(
        self,
        programs: ChimeraPrograms,
        words: WordTable,
        token_ids: torch.Tensor | None,
        outputs: int,
        order: int,
    ) -> None:
        self._programs, self._words = programs, words
        self._tables = TableAddresses(programs.rotary)
        self._found = FoundTree(outputs, token_ids)
        self._text = (ctypes.c_int64 * (order + MOST_FRESH))()
        self._order = order
        self._rows = 0
        self._one = native.Chimera(
            depth=len(programs.levels),
            order=order,
            hidden=words.hidden,
            text=ctypes.addressof(self._text),
            words=words.address,
            words_format=words.format,
            words_count=words.count,
        )

    @staticmethod
    def fits(levels: int, order: int) -> bool:
        """Whether the library drafts so many levels with n-grams of that order."""
        return levels <= _MOST_LEVELS and order <= _MOST_ORDER

    def draft(
        self,
        text: Sequence[int],
        length: int,
        states: torch.Tensor,
        layers: ctypes.Array[native.Layer],
        budget: int,
        settings: ChimeraSettings,
    ) -> Tree:
        """The likeliest guesses.

        text: up to the root, `order` tokens or more. length: tokens that have columns. states:
        float32 [tokens that the target has read, hidden], of which at most `MOST_FRESH` are new.
        layers: where columns are, with room for the new ones and the draft's.
        """
        one, fresh = self._one, len(states) - length
        self._make_room(1 + MOST_FRESH if fresh >= settings.beam else settings.beam)
        self._tables.reach(one, len(states) + one.depth)
        self._text[: self._order + fresh] = list(text[len(text) - self._order - fresh :])
        one.length, one.fresh, one.beam, one.least = length, fresh, settings.beam, settings.least
        one.states, one.states_stride = states.data_ptr(), states.stride(0)
        one.layers = ctypes.addressof(layers)
        one.guesses = self._found.native(budget, settings.ranks)
        kernels().draft_chimera(ctypes.addressof(one))
        return self._found.tree(one.guesses.nodes)

    def _make_room(self, rows: int) -> None:
        if rows <= self._rows:
            return
        programs, self._rows = self._programs, rows
        self._parts = [each.part(rows) for each in (programs.green, programs.read)]
        self._of_levels = [level.part(rows) for level in programs.levels]
        self._levels = (native.Part * len(self._of_levels))(*(p.native for p in self._of_levels))
        self._one.green, self._one.read = (part.native for part in self._parts)
        self._one.levels = ctypes.addressof(self._levels)
