"""The only generation loop: draft, verify, commit.

Plain decoding is this loop with a drafter that never guesses. Streaming, batches, chat, the
command line and benchmarks are consumers of the rounds it yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from typing import cast

import torch

from paceline.errors import UsageError
from paceline.protocols import (
    HIDDEN_STATES,
    Drafter,
    Planner,
    Propose,
    SeesStates,
    Target,
    check_capabilities,
    states_of,
)
from paceline.records import Path, Round, Seconds
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.tree import Tree
from paceline.typical import Typical, check_typical, typical_walk
from paceline.verify import walk

__all__ = ["DEFAULT_BUDGET", "Clock", "FixedBudget", "Generation", "decode"]

DEFAULT_BUDGET = 64

Clock = Callable[[], float]


def decode(
    target: Target,
    generations: Sequence[Generation],
    budget: int | Planner = DEFAULT_BUDGET,
    clock: Clock = perf_counter,
) -> Iterator[Round]:
    """Generate all texts together, one target pass a round, and yield each text's rounds.

    budget: most nodes per tree, or who decides that round by round. clock: seconds, for the times
    of the rounds.

    The caller may stop between any two rounds: cache, contexts and drafters are then consistent,
    and another `decode` may follow on the same target.

    Raises UsageError where a prompt does not fit, or a drafter needs what the target lacks.
    """
    for generation in generations:
        generation.start(target)
    planner = FixedBudget(budget) if isinstance(budget, int) else budget
    planner.start([generation.drafter for generation in generations])
    active = list(enumerate(generations))
    while active:
        target.sync([generation.context for _, generation in active])
        while not any(generation.finished for _, generation in active):
            yield from play_round(target, active, planner, clock)
        active = [(index, generation) for index, generation in active if not generation.finished]


def play_round(
    target: Target, active: Sequence[tuple[int, Generation]], planner: Planner, clock: Clock
) -> list[Round]:
    """Guess, check all guesses in one pass, keep what plain decoding would have said, learn."""
    times = [clock()]
    for row, (_, generation) in enumerate(active):
        generation.look(target, row)
    trees = planner.plan({index: generation.propose for index, generation in active})
    times.append(clock())
    scores = target.score(trees)
    paths = [gen.walk(tree, rows) for (_, gen), tree, rows in zip(active, trees, scores)]
    times.append(clock())
    target.commit(paths)
    times.append(clock())
    rounds = [
        generation.observe(index, tree, rows, path)
        for (index, generation), tree, rows, path in zip(active, trees, scores, paths)
    ]
    times.append(clock())
    share = _share(times, len(active))
    rounds = [replace(round, seconds=share) for round in rounds]
    planner.observe(rounds)
    return rounds


@dataclass(frozen=True)
class FixedBudget:
    """The planner that plans nothing: so many nodes at most, in every round."""

    budget: int

    def start(self, drafters: Sequence[Drafter]) -> None:
        """Nothing to prepare."""

    def plan(self, proposals: Mapping[int, Propose]) -> list[Tree]:
        """What the drafters propose."""
        return [propose(self.budget) for propose in proposals.values()]

    def observe(self, rounds: Sequence[Round]) -> None:
        """Nothing to learn."""


@dataclass
class Generation:
    """One text in the making.

    prompt: at least one token; `context` grows from it by every committed token.
    references: tokenised texts that the output may resemble, for drafters that copy.
    typical: accept what is likely enough; the text is then another one than plain decoding's.

    Raises UsageError for an empty prompt, and for a sampler that typical acceptance cannot use.
    """

    prompt: Sequence[int]
    drafter: Drafter
    stopping: Stopping
    sampler: Sampler = GREEDY
    references: Sequence[Sequence[int]] = ()
    typical: Typical | None = None
    context: list[int] = field(init=False)
    _vocab_size: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("the prompt is empty: give at least one token to continue from")
        if self.typical is not None:
            check_typical(self.sampler)
        self.context = list(self.prompt)

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.context[len(self.prompt) :]

    @property
    def finished(self) -> bool:
        """Whether the text has ended; `stopping.reason` says why."""
        return self.stopping.reason is not None

    def start(self, target: Target) -> None:
        """Check that `target` can serve this text, and let the drafter read the prompt."""
        check_capabilities(self.drafter, target)
        self._vocab_size = target.vocab_size
        if max(self.prompt) >= target.vocab_size:
            raise UsageError(
                f"the prompt holds token {max(self.prompt)} but the model's vocabulary ends at "
                f"{target.vocab_size}: the tokenizer belongs to another model"
            )
        if target.max_context is not None:
            room = target.max_context - len(self.prompt)
            if room < 1:
                raise UsageError(
                    f"the prompt has {len(self.prompt)} tokens but the model's context is "
                    f"{target.max_context}: shorten the prompt"
                )
            self.stopping.limit(room)
        if HIDDEN_STATES in self.drafter.requires:
            states_of(target).keep_states()
        self.drafter.start(self.context, self.references)

    def look(self, target: Target, row: int) -> None:
        """Show the hidden states of text `row` of the target to a drafter that wants them."""
        if HIDDEN_STATES in self.drafter.requires:
            cast(SeesStates, self.drafter).see(states_of(target).states(row))

    def propose(self, budget: int) -> Tree:
        """The drafter's tree, without guesses beyond the token limit: they could never be
        accepted, nor fit the model's context."""
        return self.drafter.propose(budget).clip(self.stopping.remaining - 1)

    def walk(self, tree: Tree, logits: torch.Tensor) -> Path:
        """What plain decoding would have said along `tree`; or, where that was asked for, what is
        likely enough."""
        if self.typical is not None:
            return typical_walk(
                tree, logits, self.sampler, self.context, self.stopping, self.typical
            )
        return walk(tree, logits, self.sampler, self.context, self.stopping)

    def observe(self, index: int, tree: Tree, logits: torch.Tensor, path: Path) -> Round:
        """Take the committed path into the context and let the drafter learn from the round."""
        prefill = len(self.context) == len(self.prompt)
        self.context.extend(path.tokens)
        round = Round(index, tree, logits, path, prefill, vocab_size=self._vocab_size)
        self.drafter.observe(round)
        return round


def _share(times: Sequence[float], sequences: int) -> Seconds:
    """Times at the borders of draft | target | commit | observe -> one sequence's equal share."""
    draft, target, commit, observe = ((end - begin) / sequences for begin, end in pairwise(times))
    return Seconds(draft + observe, target, commit)
