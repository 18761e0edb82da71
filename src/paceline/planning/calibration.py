"""How often guesses are right: a drafter's own estimates, corrected by what came true.

The weight of a node is the drafter's estimate that it is accepted. Divided by that of its parent it
is the node's claim: how likely the node is if its parent is right. Nodes with similar claims at
similar depths, from the same sources, are one kind of guess. For every kind we count how often its
guesses were right when their parents were. Older evidence counts less.

Sources that agree are right more often than each of them alone, and some copy from each other, so
every set of sources is learned separately; at first it is trusted as much as its best member.

Committed tokens judge every proposed tree: guesses that were cut off, or never sent to the target,
are evidence at no cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.chains import ChanceTable
from paceline.tree import ROOT, Tree

BORDERS = (0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98)
DEPTHS = (2, 3, 5, 9)
UNKNOWN = 0.5
"""The claim of a guess without a weight."""
LEAST, MOST = 0.001, 0.995
PRIOR = 4.0
"""How many guesses a drafter's estimate counts for, or a wider kind's estimate for a narrower."""

_SHARE_MEMORY = 400.0
_SHARE_RANKS = 5
"""Guesses counted per token; later ones are assumed to be as likely as similar ones."""

_Kind = tuple[int, int, int]
"""Sources, class of claim, class of depth."""


class Evidence(NamedTuple):
    """A guess whose parent was right.

    claim: how likely it was, by the drafter's own estimate.
    """

    kind: _Kind
    claim: float
    right: bool


class Watch:
    """Compares the proposed trees of one text with the tokens committed after their roots."""

    def __init__(self) -> None:
        # Trees in which the tokens committed so far are a path; its last node, and its depth.
        self._open: list[tuple[Tree, int, int]] = []

    def expect(self, tree: Tree) -> None:
        """Watch a tree proposed at the current end of the text."""
        if len(tree):
            self._open.append((tree, ROOT, 0))

    def observe(self, tokens: Sequence[int]) -> Iterator[Evidence]:
        """Yield the evidence in these committed tokens, wrong guesses included."""
        for token in tokens:
            if not self._open:
                return
            still_open = []
            for tree, node, depth in self._open:
                children = tree.children.get(node, {})
                for guess, child in children.items():
                    if tree.weights is None or tree.weights[child] > 0:
                        claim = _claim(tree, child)
                        sources = 0 if tree.sources is None else tree.sources[child]
                        yield Evidence(_kind(claim, depth + 1, sources), claim, guess == token)
                if token in children:
                    still_open.append((tree, children[token], depth + 1))
            self._open = still_open


class _Count:
    """Guesses of a kind, and how many of them were right; both decay as new ones come."""

    __slots__ = ("claimed", "right", "tried")

    def __init__(self, right: float = 0.0, tried: float = 0.0, claimed: float = 0.0) -> None:
        self.right, self.tried, self.claimed = right, tried, claimed

    def add(self, right: bool, claim: float, keep: float) -> None:
        self.right = self.right * keep + right
        self.tried = self.tried * keep + 1
        self.claimed = self.claimed * keep + claim

    def at_most(self, tried: float) -> _Count:
        """The same ratios with evidence of at most `tried` guesses."""
        scale = min(1.0, tried / self.tried) if self.tried else 1.0
        return _Count(self.right * scale, self.tried * scale, self.claimed * scale)

    def line(self) -> tuple[float, float]:
        """Offset and slope of `estimate` as a function of the prior."""
        tried = self.tried + PRIOR
        return self.right / tried, PRIOR / tried

    def trust(self, prior: float) -> float:
        return (self.right + PRIOR * prior) / (self.claimed + PRIOR)

    def estimate(self, prior: float) -> float:
        return (self.right + PRIOR * prior) / (self.tried + PRIOR)


class Calibration:
    """What is known about the guesses of one drafter on one text.

    memory: how many guesses of a kind count; older ones fade.
    """

    def __init__(self, memory: float = 48.0) -> None:
        self._keep = 1 - 1 / memory
        self._all = _Count()
        # How far to trust the claims of each set of sources.
        self._sets = defaultdict[int, _Count](_Count)
        self._kinds = defaultdict[_Kind, _Count](_Count)

    def inherited(self, memory: float, evidence: float) -> Calibration:
        """The same for another text, with each count worth at most `evidence` guesses."""
        made = Calibration(memory)
        made._all = self._all.at_most(evidence)
        made._sets |= {sources: count.at_most(evidence) for sources, count in self._sets.items()}
        made._kinds |= {kind: count.at_most(evidence) for kind, count in self._kinds.items()}
        return made

    def path_chances(self, tree: Tree) -> list[float]:
        """The chance of each node to be accepted, never more than its parent's."""
        sources = tree.sources or (0,) * len(tree)
        trust = {by: self._trust(by) for by in set(sources)}
        path_chances: list[float] = []
        for node, (parent, depth, by) in enumerate(zip(tree.parents, tree.depths, sources)):
            claim, above = _claim(tree, node), 1.0 if parent == ROOT else path_chances[parent]
            # Correct such claims in general first, then for this kind of guess.
            prior, count = min(MOST, claim * trust[by]), self._kinds.get(_kind(claim, depth, by))
            path_chances.append(above * (prior if count is None else count.estimate(prior)))
        return path_chances

    @property
    def usual(self) -> float:
        """The share of all guesses that were right when their parents were."""
        return self._all.estimate(UNKNOWN)

    def add(self, seen: Evidence) -> None:
        """Count one more guess."""
        for count in (self._all, self._sets[seen.kind[0]], self._kinds[seen.kind]):
            count.add(seen.right, seen.claim, self._keep)

    def _trust(self, sources: int) -> float:
        """Right guesses of these sources per guess that they claim is right. With little evidence,
        a set counts as its most trusted member, and a single source as all guesses."""
        if not sources:
            return self._all.trust(1.0)
        members = [1 << bit for bit in range(sources.bit_length()) if sources >> bit & 1]
        prior = max(map(self._trust, members)) if len(members) > 1 else self._all.trust(1.0)
        return self._sets[sources].trust(prior) if sources in self._sets else prior


def _claim(tree: Tree, node: int) -> float:
    """How likely a node is if its parent is right, by the drafter's own estimate."""
    return UNKNOWN if tree.weights is None else _bounded(tree.claims[node])


def _bounded(claim: float) -> float:
    return min(MOST, max(LEAST, claim))


def _kind(claim: float, depth: int, sources: int = 0) -> _Kind:
    return sources, bisect_right(BORDERS, claim), bisect_right(DEPTHS, depth)


class ChainCalibration(Calibration):
    """The same for chains of at most `longest` guesses of one source.

    table: what is known, as loops that grow chains read it.
    """

    def __init__(self, memory: float, longest: int) -> None:
        super().__init__(memory)
        self.table = ChanceTable(BORDERS, DEPTHS, LEAST, MOST, longest)

    def learn(self, claim: float, depth: int, right: bool) -> None:
        """Count a guess at `depth` whose parent was right. claim: how likely it was, by the
        drafter's own estimate."""
        claim = _bounded(claim)
        kind = _kind(claim, depth)
        self.add(Evidence(kind, claim, right))
        self.table.put(*kind[1:], *self._kinds[kind].line())
        self.table.trust = self._all.trust(1.0)


class ShareChances:
    """How likely guesses up to `distances` tokens away are to be right, each independent of those
    before it, by their share of the softmax that they come from."""

    def __init__(self, distances: int) -> None:
        self._known = ChainCalibration(_SHARE_MEMORY, distances)

    def of(self, shares: Sequence[Sequence[float]]) -> list[list[float]]:
        """Shares at distances 1, 2, … -> chances."""
        chance = self._known.table.chance
        return [
            [chance(share, distance) for share in row] for distance, row in enumerate(shares, 1)
        ]

    def learn(self, distance: int, rank: int | None, shares: Sequence[float]) -> None:
        """Learn which of the guesses with these shares was right; None if none was."""
        for place, share in enumerate(shares[:_SHARE_RANKS]):
            self._known.learn(share, distance, place == rank)
