"""Dynamic sparse trees: one tree for every number of guesses that a round can have (PPD, chapter 5).

Prompt tokens stand after the guesses of a pass and yield the guesses of the next one: a node with
two of them, once it is the last accepted one, lets the next tree be two deep. So a round is in a
*state*: the number of prompt tokens after the last accepted node. Rows spent on guesses pay now,
rows spent on prompt tokens pay in the next round, and how both add up is the long run of a Markov
chain over the states.

The root always carries all m prompt tokens. Where nothing is accepted, the next state is m.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.planning.candidate_tree import CandidateTree
from paceline.planning.cost_curve import CostCurve

__all__ = ["DynamicTree", "StateTree", "Vector", "allocate_prompts"]

Vector = NDArray[np.float64]

# A text ends now and then, and the next one begins with all prompt tokens after its first root.
# So seldom that no number shows it, it gives the chain one long run even where a table of
# acceptance knows certainties that would keep it in some states for ever.
_NEW_TEXT = 1e-9


@dataclass(frozen=True)
class StateTree:
    """The tree of one state.

    candidates: the guesses, n of them.
    prompts: n numbers of prompt tokens, those after each guess.
    root_prompts: the prompt tokens after the root.
    epts: rows that each prompt token takes, its ensemble (section 4.2).
    """

    candidates: CandidateTree
    prompts: tuple[int, ...]
    root_prompts: int
    epts: int = 1

    @property
    def width(self) -> int:
        """Rows of a pass: the root, the guesses, and the prompt tokens of all of them."""
        return 1 + len(self.candidates) + self.epts * (self.root_prompts + sum(self.prompts))

    @property
    def prompt_counts(self) -> dict[int, int]:
        """Number of prompt tokens -> guesses that carry so many."""
        return dict(sorted(Counter(self.prompts).items()))

    @cached_property
    def next_states(self) -> Vector:
        """[m + 1]: the probability that the next round is in state 0, 1, …, m."""
        chances, last = np.zeros(self.root_prompts + 1), self.candidates.last
        np.add.at(chances, list(self.prompts), last)
        chances[-1] += 1 - last.sum()  # nothing accepted: what the root carries counts
        chances *= 1 - _NEW_TEXT
        chances[-1] += _NEW_TEXT
        return chances


@dataclass(frozen=True)
class DynamicTree:
    """The trees of all states, and what they promise in the long run.

    states: m + 1 trees; states[d] is at most d deep and states[0] is empty.
    """

    states: tuple[StateTree, ...]

    @property
    def prompt_tokens(self) -> int:
        """How many there are, m."""
        return len(self.states) - 1

    @cached_property
    def transitions(self) -> Vector:
        """[m + 1, m + 1]: row d is `next_states` of state d."""
        return np.stack([tree.next_states for tree in self.states])

    @cached_property
    def steady_state(self) -> Vector:
        """[m + 1]: the share of rounds in each state, p(s_i) of PPD's proposition 5.6.4."""
        equations = self.transitions.T - np.eye(len(self.states))
        equations[-1] = 1  # one of them follows from the others; the shares add up to 1 instead
        shares: Vector = np.linalg.solve(equations, np.eye(len(self.states))[-1])
        return np.maximum(shares, 0.0)  # rounding may leave an impossible state just below

    @cached_property
    def accepted(self) -> Vector:
        """[m + 1]: the expected number of accepted guesses in each state, f(T_d)."""
        return np.array([tree.candidates.expected for tree in self.states])

    @property
    def tokens_per_pass(self) -> float:
        """Tokens gained per pass in the long run, the bonus token included: tau.

        R(T) of PPD's proposition 5.6.4 is one less.
        """
        return float(1 + self.steady_state @ self.accepted)

    @cached_property
    def worth(self) -> Vector:
        """[m + 1]: how many tokens more than in state m come in the long run, if the next round is
        in state 0, 1, …, m; the relative values of Howard, Dynamic Programming and Markov
        Processes (1960), chapter 4."""
        size = len(self.states)
        # worth + gain - transitions @ worth = accepted, and worth[m] = 0.
        equations = np.zeros((size + 1, size + 1))
        equations[:size, :size] = np.eye(size) - self.transitions
        equations[:size, size] = 1
        equations[size, size - 1] = 1
        values: Vector = np.linalg.solve(equations, np.append(self.accepted, 0.0))[:size]
        return values

    def milliseconds(self, curve: CostCurve, context: int | None = None) -> float:
        """Expected time of a pass; states count by their shares, each with its own width."""
        costs = [curve.cost(tree.width, context) for tree in self.states]
        return float(self.steady_state @ costs)

    def speedup(self, curve: CostCurve, context: int | None = None) -> float:
        """Tokens per millisecond over those of plain decoding, tau(n) / L(n) of PPD's section
        5.6.3; below 1 where guessing does not pay. The time of the drafter itself is left out."""
        plain = curve.cost(1, context)
        return self.tokens_per_pass * plain / self.milliseconds(curve, context)


def allocate_prompts(
    last: Vector, worth: Sequence[float] | Vector, total: int, floor: int = 1
) -> tuple[int, ...]:
    """Prompt tokens for n nodes, at most `total` of them (PPD, section 5.6.2, step 3).

    last: [n], the probability that a node is the last accepted one.
    worth: [m + 1], what it is worth to go on in state 0, 1, …, m. The paper takes f(T_i).
    floor: the least number for a node.

    Every node begins with m. One is taken away where that loses least, last x (worth[i] -
    worth[i - 1]) at a node with i of them, until they are few enough; of equal losses the first
    node's. That is the best allocation where `worth` rises ever more slowly.

    Raises ValueError where `floor` for every node is more than `total`.
    """
    nodes, most = len(last), len(worth) - 1
    surplus = nodes * most - total
    if surplus <= 0:
        return (most,) * nodes
    if nodes * floor > total:
        raise ValueError(f"{nodes} nodes with {floor} prompt tokens each need more than {total}")
    steps = np.diff(np.asarray(worth))[floor:]
    # Where a step is cheaper than the one above it, it follows at once: it counts as that one. So
    # the order in which steps are taken is that of their losses, and one sort finds it.
    losses = np.outer(last, np.maximum.accumulate(steps[::-1]))
    first = np.argsort(losses, axis=None, kind="stable")[:surplus]
    taken = np.bincount(first // len(steps), minlength=nodes)
    return tuple((most - taken).tolist())
