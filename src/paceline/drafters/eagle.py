"""EAGLE: a draft model of one block that goes on from the target's own features (Li et al. 2024 and
2025, arXiv 2401.15077, 2406.16858, 2503.01840).

The block reads the feature of a token and the token chosen after it, and guesses the next one; its
own output takes the feature's place from there on (see `paceline.drafters.eagle_model`). So a tree
grows to any depth, level by level: of each level the `beam` likeliest nodes are gone on from, by the
product of what the block says of the guesses up to them, and of all nodes the likeliest make the
tree (EAGLE-2, section 4).

    text … a, root b       behind b: c (0.6), d (0.3), e (0.05)
    beam 2                 behind c: f (0.5), …; behind d: f (0.2), …
    tree: root ─┬─ c ─ f   the likeliest paths of all, as many as the budget allows
                └─ d

How deep, is decided as for a draft model (`paceline.planning.draft_length`): another level is grown
as long as the chance that one of the nodes gone on from is right is worth its measured time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.chains import ChainEnd
from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.eagle_parts import EagleParts
from paceline.drafters.guesses import Guesses
from paceline.drafters.head_configs import HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.level_plan import LevelPlan
from paceline.drafters.level_tree import LevelTree, grown
from paceline.drafters.parts import check_parts, find_parts
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.planning.draft_length import LONGEST
from paceline.prefix import common_prefix
from paceline.protocols import HIDDEN_STATES, LAYER_OUTPUTS, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

if TYPE_CHECKING:
    import torch

    from paceline.drafters.eagle_levels import Levels

__all__ = ["Eagle", "EagleSettings"]

_HEARD = 8
"""Levels for which the noise of draws is made."""


@dataclass(frozen=True)
class EagleSettings:
    """Settings of `Eagle`.

    parts: a folder made by `paceline train eagle`, a hub id, or "" for those that come with this
    package.
    depth: levels of a tree, at most 32; 0 for as many as pay, see `DraftLength`.
    ranks: how many guesses behind a node are looked at.
    beam: nodes of each level that are gone on from; with 1 there is one chain with runners-up.
    least: nodes that are less likely to be accepted are not gone on from.
    weights: of the linear layers, see `HeadWeights`.

    Raises UsageError for a setting out of range; ModelError for a folder without such parts.
    """

    parts: str = ""
    depth: int = 0
    ranks: int = 10
    beam: int = 4
    least: float = 0.02
    weights: HeadWeights = "fastest"

    def __post_init__(self) -> None:
        at_least(0, depth=self.depth)
        at_least(1, ranks=self.ranks)
        at_least(1, beam=self.beam)
        if self.depth > LONGEST:
            raise UsageError(f"depth must be at most {LONGEST}, got {self.depth}")
        if not 0 <= self.least <= 1:
            raise UsageError(f"least must be a number from 0 to 1, got {self.least!r}")
        check_parts(EagleParts, self.parts)


class Eagle(Drafter):
    """Drafter with a trained block on the target's features.

    host: the model that it was trained for; it must show its hidden states.
    settings, changes: see `EagleSettings`; the latter are fields of it by name.

    Drafters of a host share what they learn of how deep pays.

    Raises UsageError for a setting out of range; ModelError where there are no such parts, or they
    are damaged or belong to another model.
    """

    requires = frozenset({HIDDEN_STATES})

    def __init__(self, host: Host, settings: EagleSettings | None = None, **changes: Any) -> None:
        from paceline.drafters.eagle_levels import levels_of  # torch takes a while to import

        own = replace(settings or EagleSettings(), **changes)
        found = find_parts(EagleParts, own.parts, host.fingerprint)
        self.promise = found.promise
        self._model = found.open(host, own.weights)
        self._new_levels = partial(levels_of, self._model)
        self._settings = own
        self.layers = found.config.layers
        if self.layers:
            self.requires |= {LAYER_OUTPUTS}
        self._plan = LevelPlan(host, (id(self._model), own.beam), own.depth)
        self._noise = DrawNoise(self._model, host.target.vocab_size)
        self._text: list[int] = []
        self._levels: Levels | None = None  # made for the first draft of a text
        self._seen: torch.Tensor | None = None

    def start(self, text: TextStart) -> None:
        """Begin with nothing read. References are not looked at."""
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._levels = self._seen = None
        self._plan.begin_text()

    def resume(self, text: TextStart) -> None:
        """Go on with other last tokens; rows of what is the same are kept."""
        same = common_prefix(self._text, text.context)
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._seen = None
        self._plan.begin_text()
        if self._levels is not None:
            # A row reads its own token. The root's is read again, since its output is needed.
            self._levels.keep(max(0, min(same - 1, len(self._text) - 2)))

    def unread(self) -> int:
        """See `Drafter.unread`."""
        return len(self._text) - 1 - (self._levels.length if self._levels else 0)

    def see(self, states: torch.Tensor) -> None:
        """See `Drafter.see`. Nothing is done with them before a draft is wanted: a drafter that
        rests costs nothing."""
        self._seen = states

    def propose(self, budget: int) -> Tree:
        """The likeliest paths over all levels; empty until the target has read the prompt."""
        states = self._seen
        if states is None or not len(states) or len(states) != len(self._text) - 1 or budget < 1:
            return EMPTY
        if self._levels is None:
            self._levels = self._new_levels(len(self._text))
        levels = self._levels
        self._plan.begin()
        fresh = len(states) - levels.length
        if fresh > levels.most_fresh:
            levels.read(self._text, states)
            self._plan.begin()
        end = self._plan.end()
        heard = min(len(end.least), _HEARD)
        levels.noise = self._noise.rows(len(self._text), heard)
        found = levels.draft(self._text, states, budget, self._settings, end)
        if found is None and levels.length < len(states):
            levels.read(self._text, states)
        return self._plan.grown(*(found or self._grown(levels, budget, end)))

    def observe(self, round: Round) -> None:
        """Go on with the text, and learn what another level is worth; the model itself learns
        nothing."""
        self._plan.observe(round)
        self._text.extend(round.path.tokens)

    def _grown(self, levels: Levels, budget: int, end: ChainEnd) -> tuple[Tree, int]:
        """What `EagleCall.draft` finds, level by level."""
        own = self._settings
        numbers = {ROOT: 0}  # of guesses that are gone on from, in the draft

        def grow(tree: LevelTree, level: Sequence[int]) -> Guesses:
            if level == [ROOT]:
                return levels.begin(own.ranks)
            parents = [numbers[tree.parents[node]] for node in level]
            for node in level:
                numbers[node] = len(numbers)
            return levels.grow([tree.tokens[node] for node in level], parents, own.ranks)

        return grown(own, budget, end, grow)
