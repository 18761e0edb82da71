"""Guesses under a constraint.

A constraint rules guesses out. Now and then it allows only one continuation, itself a guess that is
hardly ever wrong, or a few, of which one may be usual. None of this can change a text: the walk
draws from what is allowed at every node that it reaches, as plain decoding does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from paceline.errors import INTERRUPTIONS
from paceline.protocols import Matcher
from paceline.records import SourceRound
from paceline.tree import EMPTY, ROOT, Tree

GRAMMAR = "grammar"
"""Name of the source of a matcher's guesses."""

_MOST_LIKELY = 10
"""Most nodes per round at which the matcher is asked what is likely: each costs a mask."""
_WORTH = 0.2
"""After guesses less likely than this, the matcher is not asked."""
_UNWEIGHTED = 0.5
"""Claim of a guess without a weight, next to certain ones."""


class Scout:
    """Tries guesses against a constraint, ahead of the text.

    matcher: the scout's own, at the text's position. An error there concerns only guesses, so it
    must not end the text: from then on guesses are left as they are.
    source: number of the source of the matcher's guesses.
    """

    def __init__(self, matcher: Matcher, source: int) -> None:
        self._matcher: Matcher | None = matcher
        self._source = source
        self._proposed, self._seconds = 0, 0.0

    def admit(self, tree: Tree, most: int) -> Tree:
        """Keep the allowed guesses; add the continuation wherever it is forced and, where the
        drafter is unsure, what the matcher considers likely. At most `most` nodes.

            where the text must continue with "na", "me":

            root ─┬─ na ── x      becomes      root ── na ── me
                  └─ you
        """
        return self._tried(
            tree, lambda matcher: _Admission(tree, matcher, self._source, _MOST_LIKELY).run(most)
        )

    def forced(self, most: int) -> Tree:
        """The chain that must come next, at most `most` tokens."""
        return self._tried(
            EMPTY, lambda matcher: _Admission(EMPTY, matcher, self._source).run(most)
        )

    def extend(self, tree: Tree, most: int) -> Tree:
        """A tree that must stay whole, plus the tokens that must follow the root; at most `most`
        nodes."""

        def extended(matcher: Matcher) -> Tree:
            chain = _Admission(EMPTY, matcher, self._source).run(most).tokens
            known = tree.along(chain)
            rest = chain[len(known) :][: max(0, most - len(tree))]
            end = known[-1] if known else ROOT
            return tree.graft(Tree.chain(rest).marked(self._source), end) if rest else tree

        return self._tried(tree, extended)

    def observe(self, tokens: Sequence[int]) -> None:
        """Advance by committed tokens."""
        if self._matcher is None:
            return
        try:
            heard = all(map(self._matcher.enter, tokens))
        except INTERRUPTIONS:
            raise
        except BaseException:
            heard = False
        if not heard:
            self._matcher = None

    def report(self) -> SourceRound:
        """What the matcher did for the round."""
        proposed, self._proposed = self._proposed, 0
        seconds, self._seconds = self._seconds, 0.0
        return SourceRound(GRAMMAR, proposed > 0, proposed, seconds, settled=True)

    def _tried(self, tree: Tree, change: Callable[[Matcher], Tree]) -> Tree:
        if self._matcher is None:
            return tree
        began = perf_counter()
        try:
            changed = change(self._matcher)
        except INTERRUPTIONS:
            raise
        except BaseException:
            self._matcher = None
            return tree
        self._proposed += sum(by >> self._source & 1 for by in changed.sources or ())
        self._seconds += perf_counter() - began
        return changed


class _Admission:
    """One walk of a matcher through a tree.

    likely: how often the matcher may be asked what is likely.
    """

    def __init__(self, tree: Tree, matcher: Matcher, source: int, likely: int = 0) -> None:
        self._likely = likely
        self._tree, self._matcher, self._mark = tree, matcher, 1 << source
        self._claims = tree.claims if tree.weights is not None else (_UNWEIGHTED,) * len(tree)
        self._known = tree.sources or (0,) * len(tree)
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._weights: list[float] = []
        self._sources: list[int] = []
        self._entered = 0
        # Nodes of the tree still to visit, each with its new parent and that parent's depth.
        self._open: list[tuple[int, int, int]] = []

    def run(self, most: int) -> Tree:
        """The new tree; the matcher returns to where it was."""
        tree, matcher = self._tree, self._matcher
        self._follow(ROOT, ROOT, most)
        while self._open:
            node, at, depth = self._open.pop()
            matcher.leave(self._entered - depth)
            self._entered = depth
            if self._enter(tree.tokens[node]):
                at = self._add(tree.tokens[node], at, self._claims[node], self._known[node])
                self._follow(node, at, most)
        matcher.leave(self._entered)
        # Without a guess of the matcher's, weights and sources stay the drafter's, perhaps None.
        added = any(by & self._mark for by in self._sources)
        weights = tuple(self._weights) if added or tree.weights is not None else None
        sources = tuple(self._sources) if added or tree.sources is not None else None
        return Tree(tuple(self._tokens), tuple(self._parents), weights, sources).prune(most)

    def _follow(self, node: int, at: int, most: int) -> None:
        """After new node `at`, the tree's `node`: add the matcher's guesses, then the tree's."""
        below: int | None = node
        while len(self._tokens) < most:
            if forced := self._matcher.forced():
                said = [(token, 1.0) for token in forced]
            elif likely := self._likely_below(below, at):
                said = [likely]
                self._open_below(below, at, likely[0])
            else:
                break
            for token, claim in said:
                if not self._enter(token):
                    return
                below = self._children(below).get(token)
                known = 0 if below is None else self._known[below]
                at = self._add(token, at, claim, self._mark | known)
        self._open_below(below, at)

    def _likely_below(self, below: int | None, at: int) -> tuple[int, float] | None:
        """What the matcher considers likely, if it is worth asking."""
        path_chance = 1.0 if at == ROOT else self._weights[at]
        guessed = max((self._claims[child] for child in self._children(below).values()), default=0)
        if not self._likely or path_chance < _WORTH or guessed >= _UNWEIGHTED:
            return None
        self._likely -= 1
        return self._matcher.likely()

    def _open_below(self, below: int | None, at: int, but: int | None = None) -> None:
        """Queue the tree's guesses there, all but the token `but`."""
        children = [child for token, child in self._children(below).items() if token != but]
        self._open += [(child, at, self._entered) for child in reversed(children)]

    def _children(self, below: int | None) -> dict[int, int]:
        return {} if below is None else self._tree.children.get(below, {})

    def _enter(self, token: int) -> bool:
        entered = self._matcher.enter(token)
        self._entered += entered
        return entered

    def _add(self, token: int, at: int, claim: float, sources: int) -> int:
        self._tokens.append(token)
        self._parents.append(at)
        self._weights.append(claim if at == ROOT else claim * self._weights[at])
        self._sources.append(sources)
        return len(self._tokens) - 1
