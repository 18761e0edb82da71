"""Matchers for tests, of a few lines each, and plain decoding under them without the loop."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from copy import copy

import torch

from paceline.protocols import Target
from paceline.sampling import GREEDY, Sampler
from paceline.tree import EMPTY

Table = Sequence[Mapping[int, int]]


class Automaton:
    """A finite automaton over tokens: state -> {token: next state}, from state 0 on. A text is
    complete in a state that nothing leaves."""

    def __init__(self, table: Table, vocab_size: int = 16) -> None:
        self.table, self.vocab_size = table, vocab_size
        self.states = [0]
        self.habit: tuple[int, float] | None = None

    @property
    def ways(self) -> Mapping[int, int]:
        return self.table[self.states[-1]]

    def copy(self) -> Automaton:
        other = copy(self)
        other.states = list(self.states)
        return other

    def allowed(self) -> torch.Tensor:
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[list(self.ways)] = True
        return mask

    def push(self, token: int) -> bool:
        self.states.append(self.ways[token])
        return not self.ways

    def forced(self) -> list[int]:
        found: list[int] = []
        state = self.states[-1]
        while len(self.table[state]) == 1 and len(found) < 5:
            ((token, state),) = self.table[state].items()
            found.append(token)
        return found

    def likely(self) -> tuple[int, float] | None:
        return self.habit if self.habit and self.habit[0] in self.ways else None

    def enter(self, token: int) -> bool:
        if token not in self.ways:
            return False
        self.states.append(self.ways[token])
        return True

    def leave(self, count: int) -> None:
        assert 0 <= count < len(self.states)
        del self.states[len(self.states) - count :]


def random_table(seed: int, size: int = 12, vocab_size: int = 16, ends: bool = True) -> Table:
    """States with one way out, a few, or all; the last one, where texts may end, with none."""
    rng = random.Random(seed)
    table = []
    for state in range(size):
        count = rng.choice([1, 1, 1, 2, 4, vocab_size])
        tokens = rng.sample(range(vocab_size), count)
        # Mostly onward, so that texts come to an end.
        targets = [min(size, state + rng.choice([-2, 1, 1, 1])) for _ in tokens]
        table.append({token: max(0, target) for token, target in zip(tokens, targets)})
    return [*table, {}] if ends else [*table, {0: 0}]


def held_stream(
    target: Target,
    prompt: Sequence[int],
    count: int,
    matcher: Automaton,
    sampler: Sampler = GREEDY,
) -> list[int]:
    """Plain decoding of what a matcher allows: no loop, no walk, no cache; forbidden tokens are
    given no chance before anything else is done to the row."""
    text = list(prompt)
    for _ in range(count):
        target.forget()
        slot = target.open(text)
        row = target.score({slot: EMPTY})[slot][0]
        target.close(slot)
        row = row.masked_fill(~matcher.allowed(), -math.inf)
        text.append(sampler.draw(row, text))
        if matcher.push(text[-1]):
            break
    return text[len(prompt) :]
