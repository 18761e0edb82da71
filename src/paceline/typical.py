"""Typical acceptance: a lossy way to walk a tree, used only on request.

A guess is accepted if the target finds it likely enough, even if it would not have drawn it (Cai et
al. 2024, "Medusa", arXiv 2401.10774, section on typical acceptance; PPD, section 4.5.2). The text
is then neither plain decoding's nor a draw from the model's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.errors import UsageError
from paceline.records import Path
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.tree import ROOT, Tree


@dataclass(frozen=True)
class Typical:
    """Which guesses are likely enough: those whose probability is above

        min(epsilon, delta x exp(-entropy))

    epsilon: enough however sure the target is, in (0, 1). delta: scale of what is enough when it is
    unsure, above 0. The defaults are those of Medusa's and Chimera's programs, which call them
    posterior threshold and alpha; delta is the square root of epsilon, as Medusa advises.

    Raises UsageError for a number out of range.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < 1 and 0 < self.delta < math.inf):
            raise UsageError(
                "typical acceptance needs an epsilon between 0 and 1 and a delta above 0, got "
                f"{self.epsilon} and {self.delta}"
            )

    def threshold(self, probabilities: torch.Tensor) -> float:
        """The probability a guess must exceed, given the target's distribution [vocabulary]."""
        entropy = float(torch.special.entr(probabilities).sum())
        return min(self.epsilon, self.delta * math.exp(-entropy))


def check_typical(sampler: Sampler, constrained: bool) -> None:
    """Raises UsageError for a sampler, or a constraint, that typical acceptance cannot use."""
    if sampler.greedy or sampler.processors or constrained:
        raise UsageError(
            "typical acceptance needs a temperature above 0, and neither logits processors nor a "
            "constraint: set the temperature, or decode without it"
        )


def typical_walk(
    tree: Tree,
    logits: torch.Tensor,
    sampler: Sampler,
    context: Sequence[int],
    stopping: Stopping,
    typical: Typical,
) -> Path:
    """Accept the longest path of guesses that are all likely enough, the likeliest of equally long
    ones, and draw the next token as plain decoding would. Arguments are those of `walk`."""
    last = _longest(tree, logits, sampler, context, typical)
    nodes = tree.path_to(last)
    tokens = tuple([tree.tokens[node] for node in nodes])
    for count, token in enumerate(tokens):
        if stopping.push(token):
            return Path(nodes[:count], tokens[: count + 1])
    bonus = sampler.draw(logits[last + 1], [*context, *tokens])
    stopping.push(bonus)
    return Path(nodes, (*tokens, bonus))


def _longest(
    tree: Tree, logits: torch.Tensor, sampler: Sampler, context: Sequence[int], typical: Typical
) -> int:
    """The last node of the path, or ROOT."""
    vocab_size = logits.shape[-1]
    # For each accepted node: the length of its path, and the log of the path's probability.
    worth = {ROOT: (0, 0.0)}
    for parent in range(ROOT, len(tree)):
        below = tree.children.get(parent, {})
        guesses = {token: node for token, node in below.items() if token < vocab_size}
        if parent not in worth or not guesses:
            continue
        text = [*context, *(tree.tokens[node] for node in tree.path_to(parent))]
        scores = sampler.warp(sampler.process(logits[parent + 1], text))
        probabilities = scores.softmax(-1)
        threshold = typical.threshold(probabilities)
        length, above = worth[parent]
        for token, node in guesses.items():
            probability = float(probabilities[token])
            if probability > threshold:
                worth[node] = (length + 1, above + math.log(probability))
    return max(worth, key=lambda node: worth[node])
