"""The tree of one state as the nodes of a pass, before any token is known."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.planning.ppd.dynamic_tree import StateTree
from paceline.tree import ROOT

__all__ = ["TreeShape", "lay_out"]


@dataclass(frozen=True)
class TreeShape:
    """Nodes of a `Tree`: the guesses, then the prompt tokens after the root and after each guess.

    parents: of all nodes, as in `Tree.parents`.
    guesses: (distance, rank) of the guess at each of the first nodes, both from 0.
    prompts: embedding index at each of the others, epts x (prompt token) + EPT, both from 0.
    """

    parents: tuple[int, ...]
    guesses: tuple[tuple[int, int], ...]
    prompts: tuple[int, ...]


def lay_out(state: StateTree) -> TreeShape:
    """The nodes of a state's tree.

    After a node, the j-th EPT of the first prompt token is followed by the j-th one of the
    second, and so on: one chain per EPT. This is the ensemble mask of PPD's section 4.4.3, in which
    EPTs of one prompt token share a position and see only those with their own number.

        one guess, two prompt tokens after the root and one after the guess, two EPTs each:

        root ─┬─ guess ─┬─ S11
              │         └─ S12
              ├─ S11 ─── S21
              └─ S12 ─── S22
    """
    candidates = state.candidates
    parents, prompts = list(candidates.parents), []
    for node, count in ((ROOT, state.root_prompts), *enumerate(state.prompts)):
        for ept in range(state.epts):
            above = node
            for prompt in range(count):
                parents.append(above)
                prompts.append(prompt * state.epts + ept)
                above = len(parents) - 1
    guesses = tuple((len(path) - 1, path[-1]) for path in candidates.paths)
    return TreeShape(tuple(parents), guesses, tuple(prompts))
