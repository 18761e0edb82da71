"""A whole draft of EAGLE's in one call of the C library: rows of the text, levels and the tree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paceline.chains import ChainEnd
from paceline.drafters.found_trees import FoundTree
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.table_addresses import TableAddresses
from paceline.records import WordTable
from paceline.tree import Tree

if TYPE_CHECKING:
    from paceline.drafters.eagle import EagleSettings
    from paceline.drafters.eagle_programs import EaglePrograms

__all__ = ["MOST_FRESH", "EagleCall"]

MOST_FRESH = 16
"""Rows of the text in such a call; a prompt is read in calls of its own."""


class EagleCall:
    """Drafts with these programs, for any text.

    words: the target's embeddings. width: numbers of a feature. token_ids, outputs: see
    `HeadModule`.
    """

    def __init__(
        self,
        programs: EaglePrograms,
        words: WordTable,
        width: int,
        token_ids: torch.Tensor | None,
        outputs: int,
    ) -> None:
        self._programs, self._words = programs, words
        self._tables = TableAddresses(programs.rotary)
        self._found, self._end = FoundTree(outputs, token_ids), NativeEnd()
        self._text = (ctypes.c_int64 * MOST_FRESH)()
        self._rows = 0
        self._one = native.Eagle(
            width=width,
            hidden=words.hidden,
            text=ctypes.addressof(self._text),
            words=words.address,
            words_format=words.format,
            words_count=words.count,
        )

    def draft(
        self,
        text: Sequence[int],
        length: int,
        features: torch.Tensor,
        root: int,
        layers: ctypes.Array[native.Layer],
        budget: int,
        settings: EagleSettings,
        end: ChainEnd,
    ) -> tuple[Tree, int]:
        """The likeliest guesses, and how many levels were grown.

        text: up to the root. length: rows that have columns. features: float32 [tokens that the
        target has read, width], of which at most `MOST_FRESH` are new. root: the address of the
        root's output, which is kept from call to call. layers: where columns are, with room for the
        new ones and the draft's. end: where no more levels are wanted, by the chance that what is
        gone on from is right.
        """
        one, fresh = self._one, len(features) - length
        one.depth, one.beam, one.least = len(end.least), settings.beam, settings.least
        self._make_room(max(settings.beam, MOST_FRESH))
        self._tables.reach(one, len(features) + one.depth)
        self._text[:fresh] = list(text[len(text) - fresh :])
        one.length, one.fresh, one.root = length, fresh, root
        one.states, one.states_stride = features.data_ptr(), features.stride(0)
        one.layers, one.end = ctypes.addressof(layers), self._end.address(end)
        one.guesses = self._found.native(budget, settings.ranks)
        kernels().draft_eagle(ctypes.addressof(one))
        return self._found.tree(one.guesses.nodes), one.levels

    def _make_room(self, rows: int) -> None:
        if rows <= self._rows:
            return
        programs, self._rows = self._programs, rows
        self._parts = [each.part(rows) for each in (programs.read, programs.grow, programs.head)]
        self._one.read, self._one.grow, self._one.head = (part.native for part in self._parts)
