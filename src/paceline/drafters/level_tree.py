"""Trees that grow level by level, and what a drafter that grows them keeps of a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainEnd
from paceline.drafters.guesses import Guesses, guesses_of
from paceline.drafters.head_module import HeadModule, HeadWeights
from paceline.drafters.parts import PartsSettings
from paceline.drafters.settings import MOST_RANKS, whole
from paceline.errors import UsageError
from paceline.tree import ROOT, Tree

_ROOM = 64  # tokens, those of drafts after a text


@dataclass(frozen=True)
class BeamSettings(PartsSettings):
    """How trees grow by trained parts, and the settings of `PartsSettings`.

    depth: levels of a tree; 0 for as many as pay, see `DraftLength`.
    ranks: guesses to consider after each node.
    beam: most nodes of each level to continue from, 1 to 256; 1 gives one chain with runners-up.
    least: nodes that are less likely to be accepted are not continued, nor are those whose
    followers would not be worth a row, see `ChainEnd.worth`.
    context: most tokens of a prompt to read, the last ones; 0 for all.
    weights: of the linear layers, see `HeadWeights`.
    """

    depth: int = whole(0, 0)
    ranks: int = whole(10, 1, MOST_RANKS)
    beam: int = whole(2, 1, 256)  # memory for the logits of so many rows is kept
    least: float = 0.02
    context: int = whole(384, 0)
    weights: HeadWeights = "fastest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.least <= 1:
            raise UsageError(f"least must be a number from 0 to 1, got {self.least!r}")


class TextLevels(ABC):
    """What `model` keeps of one text, and drafts after it. settings: of the drafts.

    length: tokens read by the target that were taken over. ahead: how many tokens after its own
    decide what is kept of one. per_place: columns for each token. most_fresh: most new tokens that
    `draft` takes over. noise: float32 [levels, outputs], of the target's draws at the places of the
    next draft's first levels; None for none. record: whether anything of the text may be kept for
    others.
    """

    ahead = 0
    per_place = 1
    most_fresh = 0
    noise: torch.Tensor | None = None
    record = True

    def __init__(self, model: HeadModule, settings: BeamSettings) -> None:
        self._model: Any = model
        self.settings = settings
        self.length, config = 0, model.config
        # Keys and values [2, 1, KV heads, columns, head size], those of the text first; those of a
        # draft are overwritten when the text continues. Memory is allocated when it is needed.
        shape = 2, 1, config.kv_heads, 0, config.head_size
        self._held = torch.zeros(shape, dtype=torch.float32, device=model.device)
        self._moved()

    @property
    def room(self) -> int:
        """Columns that memory is allocated for."""
        return self._held.shape[-2]

    def keep(self, length: int) -> None:
        """Keep only what was taken over of the first `length` tokens."""
        self.length = min(self.length, length)

    @abstractmethod
    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """Take over what the target has read, if anything is new; see `draft`."""

    @abstractmethod
    def draft(
        self, text: Sequence[int], states: torch.Tensor, budget: int, end: ChainEnd
    ) -> tuple[Tree, int]:
        """A whole draft of at most `budget` nodes, and its number of levels, which are grown until
        `end`.

        text: from the first token that is read, with its root. states: [n, width] of all but the
        root; new ones, at most `most_fresh`, are taken over first.
        """

    def _make_room(self, columns: int) -> None:
        """Have memory for so many columns."""
        *others, room, size = self._held.shape
        if columns > room:
            wider = self._held.new_zeros(*others, self._roomy(columns), size)
            wider[..., :room, :] = self._held
            self._held = wider
            self._moved()

    def _roomy(self, columns: int) -> int:
        """More columns than these, so that memory seldom moves."""
        return max(columns + self.per_place * _ROOM, 2 * self.room)

    def _moved(self) -> None:
        """Take note that the memory of columns is elsewhere."""


class GrownLevels(TextLevels):
    """Drafts that are grown level by level, as `chimera.c` and `eagle.c` do. Nodes are numbered in
    the order they are added, the root first."""

    # By node: columns of the draft on the path to it.
    _sees: list[list[int]]

    @abstractmethod
    def begin(self) -> Guesses:
        """Begin a draft after `read`: guess after the root, node 0."""

    @abstractmethod
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """Add the next level, nodes with these tokens and parents, and guess after each."""

    def draft(
        self, text: Sequence[int], states: torch.Tensor, budget: int, end: ChainEnd
    ) -> tuple[Tree, int]:
        least, most = max(self.settings.least, end.worth), min(len(end.least), budget)
        tokens: list[int] = []
        parents: list[int] = []
        path_chances: list[float] = []
        level, numbers, guesses = [ROOT], {ROOT: 0}, self.begin()
        levels, before, shares = 1, 1.0, list[float]()
        while True:
            new = len(tokens)
            rows = zip(level, guesses.tokens, guesses.probabilities, strict=True)
            for node, own, chances in rows:
                sure = 1.0 if node == ROOT else path_chances[node]
                tokens += own
                parents += [node] * len(own)
                path_chances += [sure * chance for chance in chances]
            best = sorted(range(new, len(tokens)), key=lambda node: -path_chances[node])
            level = sorted(
                node for node in best[: self.settings.beam] if path_chances[node] >= least
            )
            likely = sum(path_chances[node] for node in level)
            shares.append(likely / before)
            if levels >= most or not likely or not end.goes_on(shares):
                break
            before = likely
            above = [numbers[parents[node]] for node in level]
            numbers |= {node: place for place, node in enumerate(level, start=len(numbers))}
            guesses = self.grow([tokens[node] for node in level], above)
            levels += 1
        return Tree(tuple(tokens), tuple(parents), tuple(path_chances)).prune(budget), levels

    def _likeliest(self, logits: torch.Tensor, level: int) -> Guesses:
        """Guesses by the logits [n, outputs] of a level's nodes; it is counted from 0."""
        ids, noise = self._model.token_ids, self._noise_at(level)
        return guesses_of(logits, self.settings.ranks, ids, noise)

    def _noise_at(self, level: int) -> torch.Tensor | None:
        """Noise [outputs] for a level."""
        return None if self.noise is None or level >= len(self.noise) else self.noise[level]

    def _placed(self, parents: Sequence[int]) -> range:
        """Slots of new nodes with these parents, -1 for the root where it is new."""
        first = self.length + len(self._sees) - self.ahead
        slots = range(first, first + len(parents))
        for slot, parent in zip(slots, parents, strict=True):
            above = self._sees[parent] if parent >= 0 else []
            columns = range(self.per_place * slot, self.per_place * (slot + 1))
            self._sees.append([*above, *columns])
        return slots

    def _mask(self, count: int, columns: int) -> NDArray[np.bool_]:
        """Which of the first `columns` columns each of the last `count` nodes sees."""
        sees = np.zeros((count, columns), dtype=np.bool_)  # indexing a tensor is slow
        sees[:, : self.per_place * self.length] = True
        for row, own in enumerate(self._sees[-count:]):
            sees[row, own] = True
        return sees
