"""Dynamic sparse trees: one tree for each depth of guesses that a round can have (PPD, chapter 5).

Prompt tokens follow the guesses of a pass and yield the guesses of the next one: if a node with two
of them is the last accepted one, the next tree can be two deep. So a round is in a *state*: the
number of prompt tokens after the last accepted node. Rows spent on guesses pay now, those spent on
prompt tokens in the next round, and their total is the long run of a Markov chain over the states.

The root always carries all m prompt tokens. If nothing is accepted, the next state is m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.planning.candidate_tree import CandidateTree
from paceline.planning.cost_curve import CostCurve
from paceline.tree import ROOT, Tree

Vector = NDArray[np.float64]

# Chance that a text ends, after which the next one begins with all prompt tokens after its first
# root. It is too small to show in any number, but gives the chain a unique long run even if
# certainties in the table of acceptance would keep it in some states for ever.
_NEW_TEXT = 1e-9


@dataclass(frozen=True)
class StateTree:
    """The tree of one state.

    candidates: the n guesses.
    prompts: n numbers of prompt tokens, one after each guess.
    root_prompts: number of prompt tokens after the root.
    epts: rows per prompt token, its ensemble (section 4.2).
    """

    candidates: CandidateTree
    prompts: tuple[int, ...]
    root_prompts: int
    epts: int = 1

    @property
    def width(self) -> int:
        """Rows of a pass: the root, the guesses, and the prompt tokens after them."""
        return 1 + len(self.candidates) + self.epts * (self.root_prompts + sum(self.prompts))

    @cached_property
    def next_states(self) -> Vector:
        """[m + 1]: the probability that the next round is in state 0, 1, …, m."""
        chances, last = np.zeros(self.root_prompts + 1), self.candidates.last
        np.add.at(chances, list(self.prompts), last)
        chances[-1] += 1 - last.sum()  # nothing accepted: the root's prompt tokens count
        chances *= 1 - _NEW_TEXT
        chances[-1] += _NEW_TEXT
        return chances

    def nodes(self, guesses: Sequence[Sequence[int]], first: int) -> Tree:
        """The nodes of a pass: the guesses, then the prompt tokens after the root and each guess,
        whose weights are 0.

        guesses: tokens by distance and rank. first: id of the first embedding; that of an EPT is
        epts x (prompt token) + EPT later, both from 0.

        After a node, the j-th EPT of the first prompt token is followed by the j-th one of the
        second, and so on: one chain per EPT. This is the ensemble mask of PPD's section 4.4.3, in
        which EPTs of one prompt token share a position and see only those with their own number.

            one guess, two prompt tokens after the root and one after the guess, two EPTs each:

            root ─┬─ guess ─┬─ S11
                  │         └─ S12
                  ├─ S11 ─── S21
                  └─ S12 ─── S22
        """
        candidates = self.candidates.tree(guesses)
        tokens, parents = list(candidates.tokens), list(candidates.parents)
        for node, count in ((ROOT, self.root_prompts), *enumerate(self.prompts)):
            for ept in range(self.epts):
                above = node
                for prompt in range(count):
                    parents.append(above)
                    tokens.append(first + prompt * self.epts + ept)
                    above = len(parents) - 1
        no_chances = (0.0,) * (len(tokens) - len(candidates))
        return Tree(tuple(tokens), tuple(parents), (*self.candidates.path_chances, *no_chances))


@dataclass(frozen=True)
class DynamicTree:
    """The trees of all states, and what they promise in the long run.

    states: m + 1 trees; states[d] is at most d deep and states[0] is empty.
    """

    states: tuple[StateTree, ...]

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens, m."""
        return len(self.states) - 1

    @cached_property
    def transitions(self) -> Vector:
        """[m + 1, m + 1]: row d is `next_states` of state d."""
        return np.stack([tree.next_states for tree in self.states])

    @cached_property
    def steady_state(self) -> Vector:
        """[m + 1]: the share of rounds in each state, p(s_i) of PPD's proposition 5.6.4."""
        equations = self.transitions.T - np.eye(len(self.states))
        equations[-1] = 1  # one equation is redundant; instead the shares sum to 1
        shares: Vector = np.linalg.solve(equations, np.eye(len(self.states))[-1])
        return np.maximum(shares, 0.0)  # rounding may leave an impossible state slightly negative

    @cached_property
    def accepted(self) -> Vector:
        """[m + 1]: the expected number of accepted guesses in each state, f(T_d)."""
        return np.array([tree.candidates.expected for tree in self.states])

    @property
    def tokens_per_pass(self) -> float:
        """Tokens gained per pass in the long run, bonus token included: tau.

        R(T) of PPD's proposition 5.6.4 is one less.
        """
        return float(1 + self.steady_state @ self.accepted)

    @cached_property
    def worth(self) -> Vector:
        """[m + 1]: how many more tokens than from state m come in the long run, if the next round
        is in state 0, 1, …, m; the relative values of Howard, Dynamic Programming and Markov
        Processes (1960), chapter 4."""
        size = len(self.states)
        # worth + gain - transitions @ worth = accepted, and worth[m] = 0.
        equations = np.zeros((size + 1, size + 1))
        equations[:size, :size] = np.eye(size) - self.transitions
        equations[:size, size] = 1
        equations[size, size - 1] = 1
        values: Vector = np.linalg.solve(equations, np.append(self.accepted, 0.0))[:size]
        return values

    def milliseconds(self, curve: CostCurve) -> float:
        """Expected time of a pass, over states by their shares, each with its own width."""
        costs = [curve.cost(tree.width) for tree in self.states]
        return float(self.steady_state @ costs)

    def speedup(self, curve: CostCurve) -> float:
        """Tokens per millisecond relative to plain decoding, tau(n) / L(n) of PPD's section 5.6.3;
        below 1 if guessing does not pay. The drafter's own time is left out."""
        return self.tokens_per_pass * curve.cost(1) / self.milliseconds(curve)


def allocate_prompts(
    last: Vector, worth: Sequence[float] | Vector, total: int, floor: int = 1
) -> tuple[int, ...]:
    """Prompt tokens for n nodes, at most `total` of them (PPD, section 5.6.2, step 3).

    last: [n], the probability that a node is the last accepted one.
    worth: [m + 1], what it is worth to continue in state 0, 1, …, m. The paper takes f(T_i).
    floor: the least number for a node.

    Every node begins with m. One is removed where that loses least, last x (worth[i] -
    worth[i - 1]) at a node with i of them, until few enough are left; of equal losses the first
    node's. This is the best allocation if `worth` is concave.

    Raises ValueError if `floor` for every node exceeds `total`.
    """
    nodes, most = len(last), len(worth) - 1
    surplus = nodes * most - total
    if surplus <= 0:
        return (most,) * nodes
    if nodes * floor > total:
        raise ValueError(f"{nodes} nodes with {floor} prompt tokens each need more than {total}")
    steps = np.diff(np.asarray(worth))[floor:]
    # A step that is cheaper than the one before it follows at once, so it counts the same. Then
    # steps are taken in the order of their losses, and one sort finds it.
    losses = np.outer(last, np.maximum.accumulate(steps[::-1]))
    first = np.argsort(losses, axis=None, kind="stable")[:surplus]
    taken = np.bincount(first // len(steps), minlength=nodes)
    return tuple((most - taken).tolist())
