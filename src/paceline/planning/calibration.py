"""How often guesses are right: the drafter's own estimates, corrected by what came true.

The weights of a tree say how likely each node is to be accepted. Divided by the weight of its
parent that is how likely the node is where the parent was right, and nodes with about the same
quotient at about the same depth are one kind of guess. Of every kind is counted how often its
guesses were right given that their parents were. Older evidence counts less.
"""

from __future__ import annotations

from bisect import bisect_right

from paceline.records import Round
from paceline.tree import ROOT, Tree

__all__ = ["Calibration"]

_BORDERS = (0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98)
_DEPTHS = (2, 3, 5, 9)
_UNKNOWN = 0.5
"""A guess without a weight."""
_LEAST, _MOST = 0.001, 0.995
_PRIOR = 4.0
"""So many guesses is a drafter's word worth, and that of wider kinds for narrower ones."""

_Kind = tuple[int, int]


class _Count:
    """Guesses of a kind, and how many of them were right; both fade as new ones come."""

    __slots__ = ("claimed", "right", "tried")

    def __init__(self, right: float = 0.0, tried: float = 0.0, claimed: float = 0.0) -> None:
        self.right, self.tried, self.claimed = right, tried, claimed

    def add(self, right: bool, claim: float, memory: float) -> None:
        keep = 1 - 1 / memory
        self.right = self.right * keep + right
        self.tried = self.tried * keep + 1
        self.claimed = self.claimed * keep + claim

    def at_most(self, tried: float) -> _Count:
        """The same shares with no more evidence than that."""
        scale = min(1.0, tried / self.tried) if self.tried else 1.0
        return _Count(self.right * scale, self.tried * scale, self.claimed * scale)

    def estimate(self, prior: float) -> float:
        return (self.right + _PRIOR * prior) / (self.tried + _PRIOR)


class Calibration:
    """What is known about the guesses of one drafter on one text.

    memory: so many guesses of a kind count; older ones fade.
    """

    def __init__(self, memory: float = 48.0) -> None:
        self._memory = memory
        self._all = _Count()
        self._kinds: dict[_Kind, _Count] = {}

    def heir(self, memory: float, evidence: float) -> Calibration:
        """What is expected of another text: the same, but each count worth no more than
        `evidence` guesses."""
        heir = Calibration(memory)
        heir._all = self._all.at_most(evidence)
        heir._kinds = {kind: count.at_most(evidence) for kind, count in self._kinds.items()}
        return heir

    def reach(self, tree: Tree) -> list[float]:
        """How likely each node is to be accepted, never more than its parent; see `claimed`."""
        return _along(tree, self._chances(tree))

    def observe(self, round: Round) -> None:
        """Count the guesses of a verified round whose parents were right, the wrong ones too."""
        tree, claims = round.tree, None
        for parent, drawn in zip((ROOT, *round.path.nodes), round.path.tokens):
            # Of equal siblings the first is the one that was asked about.
            for token, node in tree.children.get(parent, {}).items():
                claims = _claims(tree) if claims is None else claims
                right, claim = token == drawn, claims[node]
                self._all.add(right, claim, self._memory)
                kind = _kind(claim, tree.depths[node])
                count = self._kinds.setdefault(kind, _Count())
                count.add(right, claim, self._memory)

    def _chances(self, tree: Tree) -> list[float]:
        # First what the drafter is to be believed in general, then in this kind of guess.
        trust = (self._all.right + _PRIOR) / (self._all.claimed + _PRIOR)
        chances = []
        for claim, depth in zip(_claims(tree), tree.depths):
            prior = min(_MOST, claim * trust)
            count = self._kinds.get(_kind(claim, depth))
            chances.append(prior if count is None else count.estimate(prior))
        return chances


def claimed(tree: Tree) -> list[float]:
    """How likely each node is to be accepted by the drafter's own word."""
    return _along(tree, _claims(tree))


def _claims(tree: Tree) -> list[float]:
    """How likely each node is, where its parent is right, by the drafter's own word."""
    weights = tree.weights
    if weights is None:
        return [_UNKNOWN] * len(tree)
    found = []
    for node, parent in enumerate(tree.parents):
        above = 1.0 if parent == ROOT else weights[parent]
        share = weights[node] / above if above > 0 else 0.0
        found.append(min(_MOST, max(_LEAST, share)))
    return found


def _along(tree: Tree, chances: list[float]) -> list[float]:
    reach: list[float] = []
    for parent, chance in zip(tree.parents, chances):
        reach.append(chance if parent == ROOT else chance * reach[parent])
    return reach


def _kind(claim: float, depth: int) -> _Kind:
    return bisect_right(_BORDERS, claim), bisect_right(_DEPTHS, depth)
