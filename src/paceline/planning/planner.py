"""The planner: how much every drafter guesses, from what passes cost and what came true.

Trees of drafters that are sized node by node are cut to the nodes that gain most tokens per
millisecond. Trees that must stay whole are scored or left out. In both cases the drafter is not
even asked while asking does not pay. Nothing that is decided here can change a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.planning.calibration import Calibration, Watch
from paceline.planning.cost_curve import CostCurve
from paceline.planning.gate import Gate, Purse
from paceline.planning.pass_costs import PassCosts
from paceline.planning.running_time import RunningTime
from paceline.planning.sizing import MOST_WHOLE, best_first, gains, rates
from paceline.protocols import Drafter, Propose, SizedBy
from paceline.records import Round
from paceline.tree import EMPTY, Tree

__all__ = ["MOST_NODES", "TreePlanner"]

MOST_NODES = 64
"""Drafters that are sized node by node are asked for so many nodes at most."""
_MEMORY, _SESSION_MEMORY = 32.0, 400.0
_INHERITED = 8.0
_FIRST_LOOKS = 2
_STALE, _SOON, _LOOK = 64, 4, 2.0
_FORGOTTEN = 0.9


@dataclass
class _Text:
    """What is known about one text and its drafter."""

    sized_by: SizedBy
    calibration: Calibration
    gate: Gate
    watch: Watch = field(default_factory=Watch)
    asked: bool = False
    fresh: bool = True
    """The next round with the drafter is the first one, or the first of a trial: it may have
    something to build, and what it takes is not what drafts take."""
    usual: float = 2.0
    """Rows of a pass with a tree that stays whole."""
    used: float = 6.0
    """Nodes of trees that were scored, the largest of late."""
    promised: float | None = None
    """Tokens of the round that is played, by what came true of such guesses; None for trees that
    stay whole, whose rows are no guesses only."""

    @property
    def rows(self) -> int:
        """Of a pass in which the drafter is asked and nothing comes of it; a tree that is sized
        node by node may still be cut to nothing."""
        return round(self.usual) if self.sized_by == "whole" else 1

    def gained(self, tokens: int) -> float:
        """What a round of so many tokens says about rounds to come.

        Most rounds gain nothing and some gain much, so a few of them say little. What their guesses
        promised, corrected by all earlier ones, says more, if nothing about what has changed just
        now: it counts half.
        """
        return tokens if self.promised is None else (tokens + self.promised) / 2

    def most(self, limit: int) -> int:
        """How many nodes to ask for: guesses that are cut off take time to make as well, so there
        are twice as many as were used of late."""
        return MOST_WHOLE if self.sized_by == "whole" else min(limit, 4 + round(2 * self.used))


@dataclass
class _Passes:
    """What is known about passes over a certain number of texts."""

    costs: PassCosts
    since_plain: int = 0


@dataclass
class TreePlanner:
    """Sizes the trees of one method on one target; see `paceline.protocols.Planner`.

    curve: what passes cost by measurement, where there is one; passes that are played correct it.
    most_nodes: of a tree that is sized node by node.

    Costs are kept for good, and acceptance as an expectation that the next texts soon correct.
    With the same rounds, times included, it plans the same.
    """

    curve: CostCurve | None = None
    most_nodes: int = MOST_NODES
    _texts: list[_Text] = field(default_factory=list)
    _all: Calibration = field(default_factory=lambda: Calibration(_SESSION_MEMORY))
    _passes: dict[int, _Passes] = field(default_factory=dict)
    _plain_passes: int = 0
    _purse: Purse = field(default_factory=Purse)
    _before: _Text | None = None
    _drafting: RunningTime = field(default_factory=RunningTime)
    _resting: RunningTime = field(default_factory=RunningTime)

    def start(self, drafters: Sequence[Drafter]) -> None:
        """Texts begin; see `Planner.start`."""
        self._before = self._texts[-1] if self._texts else self._before
        gate = Gate(self._purse) if self._before is None else self._before.gate
        usual = _Text.usual if self._before is None else self._before.usual
        self._texts = [
            _Text(drafter.sized_by, self._all.heir(_MEMORY, _INHERITED), gate.heir(), usual=usual)
            for drafter in drafters
        ]

    def plan(self, proposals: Mapping[int, Propose]) -> list[Tree]:
        """The trees of the next pass; see `Planner.plan`."""
        passes, texts = self._of(len(proposals)), [self._texts[index] for index in proposals]
        for text in texts:
            text.asked = False
        if self._looks_at_plain(passes):
            return [EMPTY] * len(texts)
        trees: list[Tree] = []
        wide = max((text.rows for text in texts if text.gate.is_open), default=1)
        for text, propose in zip(texts, proposals.values()):
            rested = not text.gate.is_open
            text.asked = text.gate.asks(self._price(text, passes.costs, wide))
            if rested and text.asked:
                text.fresh = True
                self._drafting.learn_anew()
                wide = max(wide, text.rows)
            trees.append(propose(text.most(self.most_nodes)) if text.asked else EMPTY)
            text.watch.expect(trees[-1])
        sized = self._sized(passes.costs, texts, trees)
        for text, tree in zip(texts, sized):
            text.used = max(len(tree), text.used * _FORGOTTEN)
            if text.sized_by == "nodes":
                text.promised = 1 + sum(text.calibration.reach(tree))
        return sized

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds of one pass; see `Planner.observe`."""
        count, width = len(rounds), 1 + max(len(round.tree) for round in rounds)
        passes = self._of(count)
        if not any(round.prefill for round in rounds):
            passes.costs.observe(width, 1e3 * sum(round.seconds.target for round in rounds))
            self._plain_passes += width == 1
        passes.since_plain = 0 if width == 1 else passes.since_plain + 1
        self._time_drafting(rounds)
        self._purse.earn(passes.costs.of(width) / passes.costs.of(1))
        plain, spent = passes.costs.of(1) / count, passes.costs.of(width) / count
        for round in rounds:
            text = self._texts[round.index]
            for seen in text.watch.hear(round.path.tokens):
                text.calibration.add(seen)
                self._all.add(seen)
            if text.asked:
                more = 1 + len(round.tree) - text.usual
                # The last trees of a text are clipped and say little about the next text's.
                text.usual += more / (2 if more > 0 else 16)
                saved = text.gained(len(round.path.tokens)) * plain - spent - self._draft_price
                text.gate.judge(saved / plain)

    @property
    def _draft_price(self) -> float:
        """Milliseconds more that a round takes, per text, when the drafter is asked."""
        return max(0.0, (self._drafting.value or 0.0) - (self._resting.value or 0.0))

    def _of(self, texts: int) -> _Passes:
        if texts not in self._passes:
            near = min(self._passes, key=lambda known: abs(known - texts), default=None)
            costs = (
                PassCosts(self.curve, texts)
                if near is None
                else self._passes[near].costs.heir(texts)
            )
            self._passes[texts] = _Passes(costs)
        return self._passes[texts]

    def _time_drafting(self, rounds: Sequence[Round]) -> None:
        texts = [self._texts[round.index] for round in rounds]
        asked = {text.asked for text in texts}
        usual = not any(text.asked and text.fresh for text in texts)
        if len(asked) == 1 and usual and not any(round.prefill for round in rounds):
            times = self._drafting if asked.pop() else self._resting
            times.add(1e3 * sum(round.seconds.draft for round in rounds) / len(rounds))
        for text in texts:
            text.fresh = text.fresh and not text.asked

    def _price(self, text: _Text, costs: PassCosts, wide: int) -> float:
        """What asking costs where nothing comes of it, in passes of plain decoding.

        wide: rows of the pass as it is without this text. In a batch the pass is as wide as its
        widest tree, so the first one pays for all.
        """
        extra = costs.of(max(wide, text.rows)) - costs.of(wide)
        return (self._draft_price + max(0.0, extra)) / costs.of(1)

    def _looks_at_plain(self, passes: _Passes) -> bool:
        """Whether this pass is one of plain decoding only to learn what that costs."""
        if self.curve is None and self._plain_passes < _FIRST_LOOKS:
            return True
        if passes.costs.doubts_plain:  # an outlier, or all gains are counted against a wrong time
            if passes.since_plain < _SOON:
                return False
        elif passes.since_plain < _STALE or not self._purse.can_pay(_LOOK):
            return False
        self._purse.pay(_LOOK)
        return True

    def _sized(self, costs: PassCosts, texts: Sequence[_Text], trees: Sequence[Tree]) -> list[Tree]:
        """Trees that stay whole as they are, the others cut to the size that gains most."""
        cut = [text.sized_by == "nodes" for text in texts]
        least = max((len(tree) for tree, is_cut in zip(trees, cut) if not is_cut), default=0)
        most = max(map(len, trees), default=0)
        if most == 0 or not any(cut):
            return list(trees)
        reaches = [text.calibration.reach(tree) for text, tree in zip(texts, trees)]
        found = rates(gains(reaches, most), costs.upto(1 + most))
        size = least + int(np.argmax(found[least:]))
        return [
            tree.keep(sorted(best_first(reach)[:size])) if is_cut else tree
            for tree, reach, is_cut in zip(trees, reaches, cut)
        ]
