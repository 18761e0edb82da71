"""The planner: how much each drafter guesses, from pass costs and from what came true.

Trees that are sized node by node are cut to the nodes that gain most tokens per millisecond; those
that must stay whole are scored or left out. The drafter is not even asked while that does not pay.
No decision made here can change a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.planning.cost_curve import CostCurve
from paceline.planning.gate import Gates, TrialBudget
from paceline.planning.pass_costs import PassCosts
from paceline.planning.planned_text import PlannedText
from paceline.planning.running_time import DraftingTime
from paceline.planning.sizing import best_count, best_first
from paceline.planning.text_calibration import new_calibration
from paceline.protocols import Drafter, Planner, Propose
from paceline.records import Round
from paceline.tree import EMPTY, Tree

MOST_NODES = 64
"""Most nodes asked of a drafter whose trees are sized node by node."""
_MEMORY, _SESSION_MEMORY = 32.0, 400.0
_INHERITED = 8.0
_WAIT = 5.0
"""Prompts may be read beside texts while the pass costs at most this many times as much, the
stricter of the two limits that Sarathi-Serve is held to (Agrawal et al. 2024, arXiv 2403.02310,
section 5). If many texts wait the limit is higher: each gets as much time as one being written."""
_PIECES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8)
_FIRST_LOOKS, _WIDE = 2, 4
"""Passes of plain decoding to begin with, where costs are unknown: without a curve, and beside so
many texts that a few rows each are more than were measured."""
_STALE, _SOON, _LOOK = 64, 4, 2.0


class TreePlanner(Planner):
    """Sizes the trees of one method on one target.

    curve: measured pass costs, if known; every pass corrects them. Costs are kept for good;
    acceptance is kept as an expectation that the next texts soon correct.
    """

    def __init__(self, curve: CostCurve | None = None) -> None:
        self.curve = curve
        self._texts: dict[int, PlannedText] = {}
        self._all = new_calibration(_SESSION_MEMORY)
        self._costs: dict[int, PassCosts] = {}  # by texts, as below
        self._since_plain = Counter[int]()
        self._plain_passes = Counter[int]()  # by load, to a power of two
        self._trials = TrialBudget()
        self._gates = Gates(self._trials)
        self._drafting = DraftingTime()
        self._usual = PlannedText.usual
        self._together = 1
        # Prompt rows in the next pass: its own, or probably as many as in the last.
        self._beside = 0
        self._ahead = 0  # prompt rows of the texts in this pass

    def add(self, key: int, drafter: Drafter, budget: int | None = None) -> None:
        """Add a text, with what is known from the texts so far; see `Planner.add`."""
        self._texts[key] = PlannedText(
            drafter.sized_by,
            self._all.begin(_MEMORY, _INHERITED),
            Gates(self._trials, self._gates),
            budget,
            united=len(drafter.source_names) > 1,
            usual=self._usual,
        )

    def drop(self, key: int) -> None:
        self._texts.pop(key, None)

    def forget_trees(self, key: int) -> None:
        """Expect nothing more of a text's trees so far: its last tokens were changed."""
        self._texts[key].calibration.forget_trees()

    def plan(self, proposals: Mapping[int, Propose], ahead: int = 0) -> dict[int, Tree]:
        self._beside, self._ahead = max(self._beside, ahead), ahead
        texts = {key: self._texts[key] for key in proposals}
        self._together = len(texts)
        trees, planned = dict[int, Tree](), dict[int, PlannedText]()
        for key, text in texts.items():
            text.asked, text.gate = False, text.gates.at(self._together)
            if text.budget is None:
                planned[key] = text
            else:
                trees[key] = proposals[key](text.budget)
        if planned:
            trees |= self._planned(planned, proposals, sum(map(len, trees.values())))
        self._beside = 0
        return {key: trees[key] for key in proposals}

    def costs(self, context: int) -> CostCurve | None:
        """What rounds currently cost one text with `context` tokens in the cache, in a pass over as
        many texts as the last one: its share of plain decoding, plus the full extra cost of its own
        rows. For drafters that shape their trees by it; None before the first pass."""
        costs = self._costs.get(self._together)
        return None if costs is None else costs.share(context)

    def prefill(self, rows: int, texts: int, tokens: int) -> int:
        """As many prompt tokens as fit their share of the time; see `Planner.prefill`."""
        costs, width = self._of(self._together), 1 + max(0, rows - self._together)
        most = max(_WAIT, 1 + texts / self._together) * costs.of(width)
        found = (piece for piece in _PIECES if costs.of(width + piece) <= most)
        self._beside = min(tokens, next(found, _PIECES[-1]))
        return self._beside

    def observe(self, rounds: Sequence[Round]) -> None:
        if not rounds:
            return
        count, nodes = len(rounds), sum(len(round.tree) for round in rounds)
        costs, width = self._of(count), 1 + nodes
        self._since_plain[count] = 0 if width == 1 else self._since_plain[count] + 1
        # Passes beside prompts are not timed, but count: where many come, there may be no others.
        if not all(round.prefill and round.first for round in rounds):
            self._plain_passes[count.bit_length()] += width == 1
        if new := sum(round.first for round in rounds):
            costs.expect_change(new / count)
        if not any(round.prefill for round in rounds):
            costs.observe(width, 1e3 * sum([round.seconds.target for round in rounds]))
        drafting = self._time_drafting(rounds)
        plain, whole = costs.of(1), costs.of(width, self._beside + self._ahead)
        self._trials.earn(whole / plain)
        for round in rounds:
            text = self._texts[round.key]
            text.calibration.observe(round.path.tokens)
            if text.asked:
                # In a text's first round the prompt is read, so it could not guess yet.
                text.fresh = text.fresh and round.first
                text.usual = _followed(text.usual, 1 + len(round.tree))
                # A text's last trees are clipped, and say little about the next text's.
                self._usual = _followed(self._usual, text.usual)
                # Every text pays for its own rows' part of the extra cost.
                spent = plain / count + (whole - plain) * len(round.tree) / max(1, nodes)
                price = (spent + drafting) * count / plain
                gained = len(round.path.tokens)
                # Of the shortest texts no round says anything about others.
                if round.room and not (round.first and text.sized_by == "whole"):
                    text.gate.judge((gained - price) / count, text.gained(gained) - price)

    def _planned(
        self, texts: Mapping[int, PlannedText], proposals: Mapping[int, Propose], fixed: int
    ) -> dict[int, Tree]:
        """Trees of texts without their own budget; the others have `fixed` nodes."""
        costs = self._of(self._together)
        # Beside nodes of others there is nothing to see.
        if not fixed and self._looks_at_plain(costs):
            return dict.fromkeys(texts, EMPTY)
        trees: dict[int, Tree] = {}
        nodes = fixed + sum([text.nodes for text in texts.values() if text.gate.is_open])
        for key, text in texts.items():
            text.asked = text.gate.is_open
            if not text.asked and text.gate.asks(self._price(text, costs, nodes)):
                text.asked = text.fresh = True
                self._drafting.learn_anew()
                nodes += text.nodes
            trees[key] = proposals[key](text.most(MOST_NODES)) if text.asked else EMPTY
        if not any(map(len, trees.values())):
            sized = trees
            for key, text in texts.items():
                text.promised = text.promise(trees[key], ())
        elif len(texts) == 1 and text.sized_by == "nodes":
            sized = {key: self._sized_alone(costs, text, trees[key], fixed)}
        else:
            sized = self._sized(costs, texts, trees, fixed)
        for key, text in texts.items():
            text.used.scored(len(sized[key]))
        return sized

    def _of(self, texts: int) -> PassCosts:
        if texts not in self._costs:
            near = min(self._costs, key=lambda known: abs(known - texts), default=None)
            known = self._costs[near] if near else PassCosts(self.curve)
            self._costs[texts] = known.inherited(texts)
        return self._costs[texts]

    def _time_drafting(self, rounds: Sequence[Round]) -> float:
        """Learn from what drafting took; returns what each text that was asked pays for it."""
        texts = [self._texts[round.key] for round in rounds]
        # Texts with their own budget draft without being asked.
        usual = not any(text.budget is not None or (text.asked and text.fresh) for text in texts)
        if not usual or any(round.first for round in rounds):
            return self._drafting.price
        # Texts share the time of a pass, but each knows what its own sources took.
        spent = sum([round.seconds.draft - round.settled_seconds for round in rounds])
        asked = [text.asked for text in texts]
        found = 1e3 * max(0.0, spent), asked.count(True), asked.count(False)
        self._drafting.add(*found)
        return self._drafting.price_of(*found)

    def _price(self, text: PlannedText, costs: PassCosts, nodes: int) -> float:
        """Cost of asking in vain, in passes of plain decoding.

        nodes: of the pass so far, including the text's own if its gate is open. It pays its share
        of their cost: if only for what its own add, texts would try in turn what pays for none.
        """
        total = nodes if text.gate.is_open else nodes + text.nodes
        extra = (costs.of(1 + total) - costs.of(1)) * text.nodes / max(1, total)
        return (self._drafting.price + max(0.0, extra)) / costs.of(1)

    def _looks_at_plain(self, costs: PassCosts) -> bool:
        """Whether this pass is plain decoding, only to learn what that costs."""
        unknown = self.curve is None or _WIDE * self._together >= self.curve.widths[-1]
        if unknown and self._plain_passes[self._together.bit_length()] < _FIRST_LOOKS:
            return True
        since = self._since_plain[self._together]
        if costs.doubts_plain:  # an outlier, or all gains are judged by a wrong time
            if since < _SOON:
                return False
        elif since < _STALE or not self._trials.can_pay(_LOOK):
            return False
        self._trials.pay(_LOOK)
        return True

    def _sized_alone(self, costs: PassCosts, text: PlannedText, tree: Tree, fixed: int) -> Tree:
        """Like `_sized`, for one text whose tree is sized node by node."""
        spent = costs.upto(1 + fixed + len(tree), self._beside)[fixed:]
        nodes, promised = text.calibration.choose(tree, self._together, spent)
        text.promised = 1 + promised
        return tree.keep(nodes)

    def _sized(
        self,
        costs: PassCosts,
        texts: Mapping[int, PlannedText],
        trees: Mapping[int, Tree],
        fixed: int,
    ) -> dict[int, Tree]:
        """Trees that stay whole, unchanged; of the others, the nodes over all texts that pay."""
        kept = {
            key: list[int]() if text.sized_by == "nodes" else list(range(len(trees[key])))
            for key, text in texts.items()
        }
        expected = {key: text.calibration.expect(trees[key]) for key, text in texts.items()}
        guesses = best_first(
            [(key, expected[key]) for key, text in texts.items() if text.sized_by == "nodes"]
        )
        if guesses:
            width = 1 + fixed + sum(map(len, kept.values()))
            sure = self._together + sum(sum(expected[key]) for key, nodes in kept.items() if nodes)
            path_chances = [expected[key][node] for key, node in guesses]
            most = best_count(
                sure, path_chances, costs.upto(width + len(guesses), self._beside)[width - 1 :]
            )
            for key, node in guesses[:most]:
                kept[key].append(node)
        sized = {}
        for key, nodes in kept.items():
            nodes.sort()
            sized[key] = trees[key].keep(nodes)
            texts[key].promised = texts[key].promise(
                sized[key], [expected[key][node] for node in nodes]
            )
        return sized


def _followed(usual: float, rows: int | float) -> float:
    """The recent rows of a pass with a tree that stays whole, after one more."""
    more = rows - usual
    return usual + more / (2 if more > 0 else 16)
