"""The planner: how much every drafter guesses, from what passes cost and what came true.

Trees of drafters that are sized node by node are cut to the nodes that gain most tokens per
millisecond. Trees that must stay whole are scored or left out. In both cases the drafter is not
even asked while asking does not pay. Nothing that is decided here can change a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from paceline.planning.calibration import Calibration, Watch
from paceline.planning.cost_curve import CostCurve
from paceline.planning.drafting_time import DraftingTime
from paceline.planning.gate import Gate, Gates, Purse
from paceline.planning.pass_costs import PassCosts
from paceline.planning.sizing import MOST_WHOLE, best_count, best_first
from paceline.protocols import Drafter, Propose, SizedBy
from paceline.records import Round
from paceline.tree import EMPTY, Tree

__all__ = ["MOST_NODES", "TreePlanner"]

MOST_NODES = 64
"""Drafters that are sized node by node are asked for so many nodes at most."""
_MEMORY, _SESSION_MEMORY = 32.0, 400.0
_INHERITED = 8.0
_WAIT = 1.6
"""Prompts may be read beside texts as long as the pass costs no more than so many times as much."""
_PIECES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8)
_FIRST_LOOKS = 2
_STALE, _SOON, _LOOK = 64, 4, 2.0
_FORGOTTEN = 0.9


@dataclass
class _Text:
    """What is known about one text and its drafter."""

    sized_by: SizedBy
    calibration: Calibration
    gates: Gates
    budget: int | None = None
    watch: Watch = field(default_factory=Watch)
    gate: Gate = field(init=False)
    """That of the load in the round that is played."""
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
    stay whole and say nothing about their nodes, of which some may be no guesses."""

    @property
    def nodes(self) -> int:
        """Of a tree that is scored though nothing comes of it; one that is sized node by node may
        still be cut to nothing."""
        return max(0, round(self.usual) - 1) if self.sized_by == "whole" else 0

    def gained(self, tokens: int) -> float:
        """What a round of so many tokens says about rounds to come.

        Most rounds gain nothing and some gain much, so a few of them say little. What their guesses
        promised, corrected by all earlier ones, says more, if nothing about what has changed just
        now: it counts half.
        """
        return tokens if self.promised is None else (tokens + self.promised) / 2

    def promise(self, tree: Tree, reach: Sequence[float]) -> float | None:
        """See `promised`. reach: of the nodes of the tree, of which those of weight 0 are no
        guesses."""
        if tree.weights is None:
            return None if self.sized_by == "whole" else 1 + sum(reach)
        return 1 + sum(compress(reach, tree.weights))

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
    _texts: dict[int, _Text] = field(default_factory=dict)
    _all: Calibration = field(default_factory=lambda: Calibration(_SESSION_MEMORY))
    _passes: dict[int, _Passes] = field(default_factory=dict)
    _plain_passes: int = 0
    _purse: Purse = field(default_factory=Purse)
    _gates: Gates = field(init=False)
    _usual: float = _Text.usual
    _together: int = 1
    _beside: int = 0  # rows of prompts in the last pass, and so in the next, as is likely
    _drafting: DraftingTime = field(default_factory=DraftingTime)

    def __post_init__(self) -> None:
        self._gates = Gates(self._purse)

    def add(self, key: int, drafter: Drafter, budget: int | None = None) -> None:
        """A text joins, with what is known of the texts so far; see `Planner.add`."""
        self._texts[key] = _Text(
            drafter.sized_by,
            self._all.heir(_MEMORY, _INHERITED),
            Gates(self._purse, self._gates),
            budget,
            usual=self._usual,
        )

    def drop(self, key: int) -> None:
        """A text has ended; see `Planner.drop`."""
        self._texts.pop(key, None)

    def plan(self, proposals: Mapping[int, Propose]) -> dict[int, Tree]:
        """The trees of the next pass; see `Planner.plan`."""
        texts = {key: self._texts[key] for key in proposals}
        self._together = len(texts)
        for text in texts.values():
            text.asked, text.gate = False, text.gates.at(self._together)
        trees = {
            key: proposals[key](text.budget)
            for key, text in texts.items()
            if text.budget is not None
        }
        planned = {key: text for key, text in texts.items() if text.budget is None}
        if planned:
            trees |= self._planned(planned, proposals, sum(map(len, trees.values())))
        self._beside = 0
        return {key: trees[key] for key in proposals}

    def costs(self, context: int) -> CostCurve | None:
        """What rounds cost a text by now in a pass over as many texts as the last one: its share of
        plain decoding, and all that its own rows cost more. For drafters that shape their trees by
        it; None before the first pass.

        context: tokens in the cache of the text that asks.
        """
        passes = self._passes.get(self._together)
        curve = None if passes is None else passes.costs.curve(context)
        return None if curve is None else curve.shared_by(self._together)

    def prefill(self, rows: int) -> int:
        """As many as cost the texts that go on one pass more; see `Planner.prefill`."""
        costs, width = self._of(self._together).costs, 1 + max(0, rows - self._together)
        most = _WAIT * costs.of(width)
        found = (piece for piece in _PIECES if costs.of(width + piece) <= most)
        self._beside = next(found, _PIECES[-1])
        return self._beside

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds of one pass; see `Planner.observe`."""
        if not rounds:
            return
        count, nodes = len(rounds), sum(len(round.tree) for round in rounds)
        passes, width = self._of(count), 1 + nodes
        passes.since_plain = 0 if width == 1 else passes.since_plain + 1
        if not any(round.prefill for round in rounds):
            passes.costs.observe(width, 1e3 * sum([round.seconds.target for round in rounds]))
            self._plain_passes += width == 1
        self._time_drafting(rounds)
        plain, whole = passes.costs.of(1), passes.costs.of(width, self._beside)
        self._purse.earn(whole / plain)
        for round in rounds:
            text = self._texts[round.key]
            for seen in text.watch.hear(round.path.tokens):
                text.calibration.add(seen)
                self._all.add(seen)
            if text.asked:
                text.fresh = False
                self._follow_size(text, len(round.tree))
                # Of what the pass cost more, every text pays for its own rows.
                spent = plain / count + (whole - plain) * len(round.tree) / max(1, nodes)
                gained = text.gained(len(round.path.tokens)) * plain / count
                text.gate.judge((gained - spent - self._drafting.price) * count / plain)

    def _planned(
        self, texts: Mapping[int, _Text], proposals: Mapping[int, Propose], fixed: int
    ) -> dict[int, Tree]:
        """The trees of texts without a budget of their own; the others have `fixed` nodes."""
        passes = self._of(self._together)
        if self._looks_at_plain(passes):
            return dict.fromkeys(texts, EMPTY)
        trees: dict[int, Tree] = {}
        nodes = fixed + sum(text.nodes for text in texts.values() if text.gate.is_open)
        for key, text in texts.items():
            rested = not text.gate.is_open
            text.asked = text.gate.asks(self._price(text, passes.costs, nodes))
            if rested and text.asked:
                text.fresh = True
                self._drafting.learn_anew()
                nodes += text.nodes
            trees[key] = proposals[key](text.most(self.most_nodes)) if text.asked else EMPTY
            text.watch.expect(trees[key])
        sized = self._sized(passes.costs, texts, trees, fixed)
        for key, text in texts.items():
            text.used = max(len(sized[key]), text.used * _FORGOTTEN)
        return sized

    def _follow_size(self, text: _Text, nodes: int) -> None:
        """What trees that stay whole have of late. The last trees of a text are clipped and say
        little about the next text's."""
        more = 1 + nodes - text.usual
        text.usual += more / (2 if more > 0 else 16)
        more = text.usual - self._usual
        self._usual += more / (2 if more > 0 else 16)

    def _of(self, texts: int) -> _Passes:
        if texts not in self._passes:
            near = min(self._passes, key=lambda known: abs(known - texts), default=None)
            costs = self._passes[near].costs.heir(texts) if near else PassCosts(self.curve, texts)
            self._passes[texts] = _Passes(costs)
        return self._passes[texts]

    def _time_drafting(self, rounds: Sequence[Round]) -> None:
        texts = [self._texts[round.key] for round in rounds]
        # Texts with a budget of their own draft without being asked.
        usual = not any(text.budget is not None or (text.asked and text.fresh) for text in texts)
        if usual and not any(round.first for round in rounds):
            spent, asked = [round.open_draft_seconds for round in rounds], [t.asked for t in texts]
            self._drafting.add(1e3 * sum(spent), asked.count(True), asked.count(False))

    def _price(self, text: _Text, costs: PassCosts, nodes: int) -> float:
        """What asking costs where nothing comes of it, in passes of plain decoding.

        nodes: of the pass as it is, with the text's own if its gate is open. Of what they cost the
        text pays for its own: were it only what the pass costs more with them, texts would take
        turns in trying what pays for none of them.
        """
        own = text.nodes
        total = nodes if text.gate.is_open else nodes + own
        extra = (costs.of(1 + total) - costs.of(1)) * own / max(1, total)
        return (self._drafting.price + max(0.0, extra)) / costs.of(1)

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

    def _sized(
        self, costs: PassCosts, texts: Mapping[int, _Text], trees: Mapping[int, Tree], fixed: int
    ) -> dict[int, Tree]:
        """Trees that stay whole as they are; of the others the nodes that are worth most, as many
        over all texts as gain most."""
        kept = {
            key: list[int]() if text.sized_by == "nodes" else list(range(len(trees[key])))
            for key, text in texts.items()
        }
        reaches = {key: text.calibration.reach(trees[key]) for key, text in texts.items()}
        guesses = best_first(
            [(key, reaches[key]) for key, text in texts.items() if text.sized_by == "nodes"]
        )
        if guesses:
            width = 1 + fixed + sum(map(len, kept.values()))
            sure = self._together + sum(sum(reaches[key]) for key, nodes in kept.items() if nodes)
            reach = [reaches[key][node] for key, node in guesses]
            most = best_count(
                sure, reach, costs.upto(width + len(guesses), self._beside)[width - 1 :]
            )
            for key, node in guesses[:most]:
                kept[key].append(node)
        sized = {}
        for key, nodes in kept.items():
            nodes.sort()
            sized[key] = trees[key].keep(nodes)
            texts[key].promised = texts[key].promise(
                sized[key], [reaches[key][node] for node in nodes]
            )
        return sized
