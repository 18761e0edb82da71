"""Texts that are known beforehand, a device with any costs, and drafters that are right on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from paceline.bench.trial import Forced
from paceline.loop import Generation, decode
from paceline.protocols import TREES, Drafter, Planner, SizedBy, Target
from paceline.records import Path, Round, TargetInfo, TextStart
from paceline.stopping import Stopping
from paceline.tree import EMPTY, Tree

Cost = Callable[[int], float]
"""Rows of a pass -> milliseconds."""

FLAT = [0.0, 10.0, 10.1, 10.2, 10.3, 10.6, 11.0, 11.6, 12.2]
STEEP = [0.0, 10.0, 19.0, 21.0, 17.0, 22.0, 24.0, 26.0, 28.0]


def table(costs: Sequence[float]) -> Cost:
    """Costs of 1, 2, … rows from a list that begins with a 0; beyond it they grow with the rows."""
    last = len(costs) - 1
    return lambda rows: costs[rows] if rows <= last else costs[last] * rows / last


class Device(Target):
    """A target whose scores mean nothing and whose clock costs what it is told, prompts apart.

    spent: milliseconds of all passes, drafting included. widths: of every
    pass, one and the nodes of all its trees.
    """

    vocab_size = sys.maxsize
    max_context = None
    capabilities = frozenset({TREES})

    def __init__(self, cost: Cost, noise: Callable[[], float] = lambda: 1.0) -> None:
        self.cost, self.noise = cost, noise
        self.spent = 0.0
        self.shown = 0.0
        self.widths: list[int] = []
        self.opened = 0

    def clock(self) -> float:
        return self.shown / 1e3

    def open(self, context: Sequence[int]) -> int:
        self.opened += 1
        return self.opened

    def close(self, slot: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def pending(self, slot: int) -> int:
        return 0

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        nodes = sum(map(len, trees.values()))
        self.widths.append(1 + nodes)
        spent = self.cost(len(trees) + nodes)
        self.spent += spent
        self.shown += spent * self.noise()
        return {slot: torch.zeros(len(tree) + 1, 1) for slot, tree in trees.items()}

    def commit(self, paths: Mapping[int, Path]) -> None:
        pass

    def describe(self) -> TargetInfo:
        return TargetInfo("Device")


class Scripted(Drafter):
    """A chain of `length` guesses; at every place of the text `right` of them are right.

    weight: what each guess claims, None for no word at all. sized_by "whole": virtual ids fill the
    chain up to `length`, and after a round without a tree there are no guesses in the next one.
    milliseconds: what asking takes on `device`.
    """

    def __init__(
        self,
        story: Sequence[int],
        right: Callable[[int], int],
        *,
        length: int = 7,
        weight: float | None = 0.8,
        sized_by: SizedBy = "nodes",
        device: Device | None = None,
        milliseconds: float = 0.0,
    ) -> None:
        self.story, self.right, self.length, self.weight = story, right, length, weight
        self.sized_by: SizedBy = sized_by
        self.device, self.milliseconds = device, milliseconds
        self.place = 0
        self.asked = 0
        self.warm = False

    def start(self, text: TextStart) -> None:
        self.place = 0

    def propose(self, budget: int) -> Tree:
        self.asked += 1
        if self.device is not None:
            self.device.spent += self.milliseconds
            self.device.shown += self.milliseconds
        right = self.right(self.place)
        if self.sized_by == "whole" and not self.warm:
            right = 0
        coming = self.story[self.place : self.place + min(self.length, budget)]
        tokens = [token if step < right else token + 10**6 for step, token in enumerate(coming)]
        if not tokens:
            return EMPTY
        weights = None
        if self.weight is not None:
            weights = tuple(self.weight ** (step + 1) for step in range(len(tokens)))
        return Tree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), weights)

    def observe(self, round: Round) -> None:
        self.place += len(round.path.tokens)
        self.warm = bool(len(round.tree))


def replay(
    device: Device, drafters: Sequence[Drafter], story: Sequence[int], sizing: int | Planner
) -> list[Round]:
    """Every drafter's text is `story`, in one batch; all rounds."""
    generations = [
        Generation([1], drafter, Stopping(len(story)), Forced(prompt_tokens=1, recorded=story))
        for drafter in drafters
    ]
    rounds = list(decode(device, generations, sizing, device.clock))
    assert all(generation.output == list(story) for generation in generations)
    return rounds
