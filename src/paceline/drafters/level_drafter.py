"""What EAGLE and Chimera share: trees that grow level by level from states that the target exposes.

Each level is guessed after the guesses of the one before. If the levels can, they make a draft in
one call; otherwise it grows step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from paceline.chains import ChainEnd
from paceline.drafters.draw_noise import DrawNoise, Outputs
from paceline.drafters.host import Host
from paceline.drafters.level_plan import LevelPlan
from paceline.drafters.level_tree import BeamSettings
from paceline.planning.draft_length import LONGEST
from paceline.prefix import common_prefix
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree

if TYPE_CHECKING:
    import torch

__all__ = ["LevelDrafter", "TextLevels"]

_HEARD = 8
"""Most levels that get the noise of draws."""


class TextLevels(ABC):
    """What is kept of one text, and a draft after it.

    length: tokens read by the target that were taken over. ahead: how many tokens after its own
    decide what is kept of one. most_fresh: most new ones that `draft` takes over. noise: float32
    [levels, outputs], of the target's draws at the places of the next draft's first levels; None
    for none.
    """

    length: int
    ahead = 0
    most_fresh = 0
    noise: torch.Tensor | None = None

    @abstractmethod
    def keep(self, length: int) -> None:
        """Keep only what was taken over of the first `length` tokens."""

    def draft(
        self,
        text: Sequence[int],
        states: torch.Tensor,
        budget: int,
        settings: BeamSettings,
        end: ChainEnd,
    ) -> tuple[Tree, int] | None:
        """A whole draft of at most `budget` nodes, and its number of levels; None if it has to grow
        step by step.

        text: from the first token that is read, with its root. states: [n, width] of all but the
        root; new ones, at most `most_fresh`, are taken over first.
        """
        return None

    def _noise_at(self, level: int) -> torch.Tensor | None:
        """Noise [outputs] for a level, counted from 0."""
        return None if self.noise is None or level >= len(self.noise) else self.noise[level]


LevelsT = TypeVar("LevelsT", bound=TextLevels)


class LevelDrafter(Drafter, Generic[LevelsT]):
    """Drafter that grows trees level by level. Of a long prompt, it reads only the end.

    model: what guesses. new_levels: makes those of a text, with room for this many tokens at first.
    most: levels of a tree.

    Drafters of a host with the same model and beam share what they learn about the depth that pays.
    """

    requires = frozenset({HIDDEN_STATES})

    def __init__(
        self,
        host: Host,
        model: Outputs,
        settings: BeamSettings,
        new_levels: Callable[[int], LevelsT],
        most: int = LONGEST,
    ) -> None:
        self._beam = settings
        self._new_levels = new_levels
        self._plan = LevelPlan(host, (id(model), settings.beam), settings.depth, most)
        self._noise = DrawNoise(model, host.target.vocab_size)
        self._text: list[int] = []
        self._first = 0  # place of the first token that is read
        self._levels: LevelsT | None = None  # made for the first draft of a text
        self._seen: torch.Tensor | None = None

    def start(self, text: TextStart) -> None:
        """Begin a text. What was read of the tokens that it shares with the last one is kept, as
        states depend on tokens alone, unless these are less than half of the last one, whose memory
        is then released. References are ignored."""
        same, before = common_prefix(self._text, text.context), len(self._text)
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._seen = None
        self._plan.begin_text()
        if 2 * same < before:
            self._levels = None
        elif self._levels is not None:
            # The target has not read the root.
            kept = min(same, len(self._text) - 1) - self._levels.ahead - self._first
            self._levels.keep(max(0, kept))
        if self._levels is None or not self._levels.length:
            self._first = 0

    def stop(self) -> None:
        """Let go of the target's states. What was read of them is kept: a chat goes on."""
        self._seen = None

    def unread(self) -> int:
        """See `Drafter.unread`."""
        unread = len(self._text) - 1 - self._first - (self._levels.length if self._levels else 0)
        return min(unread, self._beam.context or unread)

    def observe_states(self, states: torch.Tensor) -> None:
        """See `Drafter.observe_states`. They are not read before a draft is wanted: a drafter that
        is switched off costs nothing."""
        self._seen = states

    def propose(self, budget: int) -> Tree:
        """The likeliest paths over all levels; empty until the target has read the prompt."""
        states = self._seen
        if states is None or not len(states) or len(states) != len(self._text) - 1 or budget < 1:
            return EMPTY
        unread = self.unread()
        if self._levels is None:
            self._levels = self._new_levels(unread + 1)
        levels = self._levels
        self._plan.begin()
        if self._first + levels.length + unread < len(states):  # too many to read all
            levels.keep(0)
            self._first = len(states) - unread
        text, states = self._text[self._first :], states[self._first :]
        # A prompt is read beforehand; the few new tokens of a round, in the draft's own call.
        beforehand = unread > levels.most_fresh
        if beforehand:
            self._read(levels, text, states)
            self._plan.begin()
        end = self._plan.end()
        levels.noise = self._noise.rows(len(self._text), min(len(end.least), _HEARD))
        found = levels.draft(text, states, budget, self._beam, end)
        if found is None:
            if not beforehand:
                self._read(levels, text, states)
            found = self._grown(levels, budget, end)
        return self._plan.grown(*found)

    def observe(self, round: Round) -> None:
        """Continue the text, and learn what another level is worth; the model itself learns
        nothing."""
        self._plan.observe(round, len(self._text))
        self._text.extend(round.path.tokens)

    @abstractmethod
    def _read(self, levels: LevelsT, text: Sequence[int], states: torch.Tensor) -> None:
        """Take over what the target has read since the last draft, if anything. See
        `TextLevels.draft`."""

    @abstractmethod
    def _grown(self, levels: LevelsT, budget: int, end: ChainEnd) -> tuple[Tree, int]:
        """What `TextLevels.draft` returns, grown level by level after `_read`."""
