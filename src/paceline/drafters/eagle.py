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

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.chains import ChainEnd, certain_end
from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.eagle_parts import EagleParts
from paceline.drafters.head_configs import HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.level_tree import LevelTree
from paceline.drafters.parts import check_parts, find_parts
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.planning.draft_length import LONGEST, DraftLength
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
        self._settings, self._clock = own, host.clock
        self.layers = found.config.layers
        if self.layers:
            self.requires |= {LAYER_OUTPUTS}
        self._plan: DraftLength | None = None
        if not own.depth:
            key = DraftLength, id(self._model), own.beam
            self._plan = host.learn(key, lambda: DraftLength(host.curve))
        self._noise = DrawNoise(self._model, host.target.vocab_size)
        self._text: list[int] = []
        self._levels: Levels | None = None  # made for the first draft of a text
        self._seen: torch.Tensor | None = None
        # When this round's draft was asked for and given, in seconds; None where it was not.
        self._asked: float | None = None
        self._answered = 0.0
        self._tree = EMPTY

    def start(self, text: TextStart) -> None:
        """Begin with nothing read. References are not looked at."""
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._levels = self._seen = self._asked = None

    def resume(self, text: TextStart) -> None:
        """Go on with other last tokens; rows of what is the same are kept."""
        same = common_prefix(self._text, text.context)
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._seen = self._asked = None
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
        levels, began = self._levels, self._clock()
        if self._asked is None:
            self._asked = began
        fresh = len(states) - levels.length
        if fresh > levels.most_fresh:
            levels.read(self._text, states)
            began = self._clock()
        end = self._end()
        heard = min(len(end.least), _HEARD)
        levels.noise = self._noise.rows(len(self._text), heard)
        found = levels.draft(self._text, states, budget, self._settings, end)
        if found is None and levels.length < len(states):
            levels.read(self._text, states)
        self._tree, grown = found or self._grown(levels, budget, end)
        self._answered = self._clock()
        if self._plan is not None:
            self._plan.drafted(1e3 * (self._answered - began) / grown, 1)
        return self._tree

    def observe(self, round: Round) -> None:
        """Go on with the text, and learn what another level is worth; the model itself learns
        nothing."""
        if self._plan is not None and self._asked is not None:
            self._learn(self._plan, self._asked, round)
        self._asked = None
        self._text.extend(round.path.tokens)

    def _end(self) -> ChainEnd:
        if self._plan is None:
            return certain_end(0.0, self._settings.depth)
        return self._plan.end(())

    def _grown(self, levels: Levels, budget: int, end: ChainEnd) -> tuple[Tree, int]:
        """What `EagleCall.draft` finds, level by level."""
        tree, own = LevelTree(), self._settings
        # Nodes of a level by their numbers among the guesses, and their numbers in the draft.
        level, numbers = [ROOT], {ROOT: 0}
        shares, before, grown = list[float](), 1.0, 1
        tree.add(level, levels.begin(own.ranks))
        while grown < min(len(end.least), budget):
            level = tree.likeliest(own.beam, own.least)
            likely = sum(tree.reach[node] for node in level)
            if not likely:
                break
            shares.append(likely / before)
            if not end.goes_on(shares):
                break
            before, parents = likely, [numbers[tree.parents[node]] for node in level]
            for node in level:
                numbers[node] = len(numbers)
            tokens = [tree.tokens[node] for node in level]
            tree.add(level, levels.grow(tokens, parents, own.ranks))
            grown += 1
        return tree.best(budget), grown

    def _learn(self, plan: DraftLength, asked: float, round: Round) -> None:
        said, claims = round.path.tokens, _claims_by_level(self._tree)
        plan.judge(claims[: len(said)], len(self._tree.along(said)))
        plan.scored(len(claims), min(len(claims), max(round.tree.depths, default=0)))
        if not round.prefill:
            now = self._clock()
            plan.played(1e3 * (now - self._answered), 1e3 * (now - asked), len(said))


def _claims_by_level(tree: Tree) -> list[float]:
    """Of each depth, how likely one of its nodes is right where one of the depth before is."""
    sure = [0.0] * max(tree.depths, default=0)
    for depth, reach in zip(tree.depths, tree.weights or (), strict=True):
        sure[depth - 1] += reach
    before = [1.0, *sure]
    return [each / above if above else 0.0 for each, above in zip(sure, before)]
