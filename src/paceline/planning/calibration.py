"""How often guesses are right: the drafter's own estimates, corrected by what came true.

The weights of a tree say how likely each node is to be accepted. Divided by the weight of its
parent that is how likely the node is where the parent was right, and nodes with about the same
quotient at about the same depth, proposed by the same sources, are one kind of guess. Of every kind
is counted how often its guesses were right given that their parents were. Older evidence counts
less.

Sources that say the same are right more often than each of them alone, and some copy from each
other: so every set of them is learned by itself. How far a set is to be believed of which nothing
is known yet is taken from the likeliest of its members.

What is said tells about every tree that was proposed, whether it was scored or not: guesses that
were cut off, or never given to the target at all, are evidence for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.chains import ChanceTable
from paceline.tree import ROOT, Tree

__all__ = [
    "BORDERS",
    "DEPTHS",
    "LEAST",
    "MOST",
    "PRIOR",
    "UNKNOWN",
    "Calibration",
    "Evidence",
    "Watch",
    "chance_table",
]

BORDERS = (0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98)
DEPTHS = (2, 3, 5, 9)
UNKNOWN = 0.5
"""A guess without a weight."""
LEAST, MOST = 0.001, 0.995
PRIOR = 4.0
"""So many guesses is a drafter's word worth, and that of wider kinds for narrower ones."""

_Kind = tuple[int, int, int]
"""Sources, class of the claim, class of the depth."""


class Evidence(NamedTuple):
    """A guess whose parent was right.

    claim: how likely it was by the drafter's own word.
    """

    kind: _Kind
    claim: float
    right: bool


class Watch:
    """The proposed trees of one text, compared with what is said from their root on."""

    def __init__(self) -> None:
        # Trees of which all that was said so far is a path, its end, and how deep that is.
        self._open: list[tuple[Tree, int, int]] = []

    def expect(self, tree: Tree) -> None:
        """The drafter proposes this where the text ends now."""
        if len(tree):
            self._open.append((tree, ROOT, 0))

    def hear(self, tokens: Sequence[int]) -> Iterator[Evidence]:
        """These tokens were said: what that tells, wrong guesses included."""
        for token in tokens:
            if not self._open:
                return
            still_open = []
            for tree, node, depth in self._open:
                right = None
                for guess, child in _children(tree, node):
                    if tree.weights is None or tree.weights[child] > 0:
                        claim = UNKNOWN if tree.weights is None else _bounded(tree.claims[child])
                        sources = 0 if tree.sources is None else tree.sources[child]
                        yield Evidence(_kind(claim, depth + 1, sources), claim, guess == token)
                    if guess == token:
                        right = child
                if right is not None:
                    still_open.append((tree, right, depth + 1))
            self._open = still_open


class _Count:
    """Guesses of a kind, and how many of them were right; both fade as new ones come."""

    __slots__ = ("claimed", "right", "tried")

    def __init__(self, right: float = 0.0, tried: float = 0.0, claimed: float = 0.0) -> None:
        self.right, self.tried, self.claimed = right, tried, claimed

    def add(self, right: bool, claim: float, keep: float) -> None:
        self.right = self.right * keep + right
        self.tried = self.tried * keep + 1
        self.claimed = self.claimed * keep + claim

    def at_most(self, tried: float) -> _Count:
        """The same shares with no more evidence than that."""
        scale = min(1.0, tried / self.tried) if self.tried else 1.0
        return _Count(self.right * scale, self.tried * scale, self.claimed * scale)

    def line(self) -> tuple[float, float]:
        """Offset and slope of `estimate` over what is expected."""
        tried = self.tried + PRIOR
        return self.right / tried, PRIOR / tried

    def trust(self, prior: float) -> float:
        return (self.right + PRIOR * prior) / (self.claimed + PRIOR)

    def estimate(self, prior: float) -> float:
        return (self.right + PRIOR * prior) / (self.tried + PRIOR)


class Calibration:
    """What is known about the guesses of one drafter on one text.

    memory: so many guesses of a kind count; older ones fade.
    """

    def __init__(self, memory: float = 48.0) -> None:
        self._keep = 1 - 1 / memory
        self._all = _Count()
        # Of each set of sources how far its claims are to be believed.
        self._sets: dict[int, _Count] = {}
        self._kinds: dict[_Kind, _Count] = {}

    def inherited(self, memory: float, evidence: float) -> Calibration:
        """What is expected of another text: the same, but each count worth no more than
        `evidence` guesses."""
        made = Calibration(memory)
        made._all = self._all.at_most(evidence)
        made._sets = {sources: count.at_most(evidence) for sources, count in self._sets.items()}
        made._kinds = {kind: count.at_most(evidence) for kind, count in self._kinds.items()}
        return made

    def path_chances(self, tree: Tree) -> list[float]:
        """How likely each node is to be accepted, never more than its parent."""
        sources = tree.sources or (0,) * len(tree)
        trust = {by: self._trust(by) for by in set(sources)}
        path_chances: list[float] = []
        depths: list[int] = []
        for parent, claim, by in zip(tree.parents, _claims(tree), sources):
            depth, above = (
                (1, 1.0) if parent == ROOT else (depths[parent] + 1, path_chances[parent])
            )
            depths.append(depth)
            path_chances.append(above * self._chance(claim, _kind(claim, depth, by), trust[by]))
        return path_chances

    @property
    def usual(self) -> float:
        """The share of all guesses that were right where their parents were."""
        return self._all.estimate(UNKNOWN)

    def learn(
        self, claim: float, depth: int, right: bool, table: ChanceTable | None = None
    ) -> None:
        """Count a guess at `depth` whose parent was right. claim: how likely it was by the drafter's
        own word. table: of `chance_table`, that is to say what is known now of guesses like it."""
        claim = _bounded(claim)
        kind = _kind(claim, depth)
        self.add(Evidence(kind, claim, right))
        if table is not None:
            table.put(*kind[1:], *self._kinds[kind].line())
            table.trust = self._all.trust(1.0)

    def add(self, seen: Evidence) -> None:
        """Count one more guess."""
        kind, claim, right = seen
        own_set, own_kind = self._sets.get(kind[0]), self._kinds.get(kind)
        if own_set is None:
            own_set = self._sets[kind[0]] = _Count()
        if own_kind is None:
            own_kind = self._kinds[kind] = _Count()
        for count in (self._all, own_set, own_kind):
            count.add(right, claim, self._keep)

    def _chance(self, claim: float, kind: _Kind, trust: float) -> float:
        # First what such claims are to be believed in general, then in this kind of guess.
        prior = min(MOST, claim * trust)
        count = self._kinds.get(kind)
        return prior if count is None else count.estimate(prior)

    def _trust(self, sources: int) -> float:
        """How many guesses of these sources are right for each that they claim to be; of those of
        which little is known as of the likeliest of their members, and of each of these as of all
        guesses."""
        if not sources:
            return self._all.trust(1.0)
        several = sources & (sources - 1)
        prior = max(map(self._trust, _members(sources))) if several else self._all.trust(1.0)
        return self._sets[sources].trust(prior) if sources in self._sets else prior


def _members(sources: int) -> Iterator[int]:
    """The sets of one source each that make up this one."""
    while sources:
        yield sources & -sources
        sources &= sources - 1


def _children(tree: Tree, node: int) -> Iterator[tuple[int, int]]:
    """Tokens and numbers of the children; of equal siblings the first counts, as in the walk."""
    found: set[int] = set()
    for child in range(node + 1, len(tree)):
        if tree.parents[child] == node and tree.tokens[child] not in found:
            found.add(tree.tokens[child])
            yield tree.tokens[child], child


def _claims(tree: Tree) -> list[float]:
    """How likely each node is, where its parent is right, by the drafter's own word."""
    if tree.weights is None:
        return [UNKNOWN] * len(tree)
    return [min(MOST, max(LEAST, claim)) for claim in tree.claims]


def _bounded(claim: float) -> float:
    return min(MOST, max(LEAST, claim))


def _kind(claim: float, depth: int, sources: int = 0) -> _Kind:
    return sources, bisect_right(BORDERS, claim), bisect_right(DEPTHS, depth)


def chance_table(longest: int) -> ChanceTable:
    """Chances of guesses of one source down to a depth of `longest`, as long as nothing is known of
    any."""
    return ChanceTable(BORDERS, DEPTHS, LEAST, MOST, longest)
