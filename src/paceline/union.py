"""Trees of several sources merged into one: the columns of `paceline.tree.Tree`.

A node that several sources propose becomes one node, which records them all. It is wrong only if
all are wrong, as if they erred independently (a noisy-or of their claims). The same source again,
or one that reads the same, is no second opinion: of their claims the larger counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ROOT = -1


class Union:
    """Proposed nodes, with equal siblings merged.

    alike: sources that all know the same, as a set of bits.
    tokens, parents, claims, sources: as in `Tree`; claims and sources combine all that proposed a
    node.
    """

    def __init__(self, alike: int = 0) -> None:
        self._alike = alike
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.claims: list[float] = []
        self.sources: list[int] = []
        self._children: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        claims: Iterable[float],
        sources: Iterable[int],
        at: int = _ROOT,
    ) -> None:
        """Merge in a tree whose root is node `at` of this one. sources: for each node, or more."""
        children, place, alike = self._children, list[int](), self._alike
        own_claims, own_sources, count = self.claims, self.sources, len(self.tokens)
        for token, parent, claim, by in zip(tokens, parents, claims, sources):
            above = at if parent == _ROOT else place[parent]
            node = children.setdefault((above, token), count)
            place.append(node)
            if node == count:
                count += 1
                self.tokens.append(token)
                self.parents.append(above)
                own_claims.append(claim)
                own_sources.append(by)
                continue
            known, heard = own_claims[node], own_sources[node]
            if heard & by or (heard & alike and by & alike):
                own_claims[node] = claim if claim > known else known
            else:
                own_claims[node] = known + claim - known * claim
            own_sources[node] = heard | by

    def weights(self) -> list[float]:
        """How likely each node is to be accepted: its claim times those of all its ancestors."""
        weights: list[float] = []
        for claim, parent in zip(self.claims, self.parents):
            weights.append(claim if parent == _ROOT else claim * weights[parent])
        return weights
