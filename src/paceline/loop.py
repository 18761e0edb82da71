"""The only generation loop: draft, verify, commit.

Plain decoding is this loop with a drafter that never guesses. Streaming, batches, chat, draft
models, the command line and benchmarks consume the rounds it yields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from time import perf_counter

import torch

from paceline.errors import INTERRUPTIONS
from paceline.generation import Generation
from paceline.prompt_reading import PREFILL_ALONE, pieces_within, sorted_texts, tokens_read
from paceline.protocols import Planner, Propose, Target
from paceline.records import Path, Round, Seconds
from paceline.tree import EMPTY, Tree

__all__ = ["DEFAULT_BUDGET", "Batch", "Clock", "FixedBudget", "Generation", "decode"]

Clock = Callable[[], float]

_Scores = Mapping[int, torch.Tensor]

DEFAULT_BUDGET = 64
_PREFILL_BESIDE = 32
"""Prompt tokens read in a pass with other texts while the cost of a row is unknown."""

_keys = count()  # unique within the process, so that batches may share a planner


@dataclass(frozen=True)
class FixedBudget(Planner):
    """The planner that plans nothing: at most `budget` nodes in every round."""

    budget: int

    def plan(self, proposals: Mapping[int, Propose], ahead: int = 0) -> dict[int, Tree]:
        """Whatever the drafters propose."""
        return {key: propose(self.budget) for key, propose in proposals.items()}

    def prefill(self, rows: int, texts: int, tokens: int) -> int:
        """A few tens of tokens."""
        return _PREFILL_BESIDE


class Batch:
    """The texts that are generated together on one target. They join and leave between rounds.

    planner: sizes their trees. clock: in seconds, times the rounds.

    An error in one text (a processor that raises, a drafter that fails) ends only that text: it
    leaves the batch, and `Generation.error` says why.
    """

    def __init__(self, target: Target, planner: Planner, clock: Clock = perf_counter) -> None:
        self.target = target
        self._planner = planner
        self._clock = clock
        self._texts: dict[int, Generation] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, key: int) -> bool:
        return key in self._texts

    def add(self, generation: Generation) -> int:
        """Add a text and return its key. Raises UsageError if it does not fit the target."""
        generation.fit(self.target)
        key, generation.slot = next(_keys), self.target.open(generation.context)
        try:
            generation.reused = tokens_read(generation, self.target)
            generation.drafter.start(generation.start_as(key))
            self._planner.add(key, generation.drafter, generation.budget)
        except BaseException:
            self.target.close(generation.slot)
            raise
        self._texts[key] = generation
        return key

    def rewrite(self, key: int) -> None:
        """Continue a text from its context, which its owner has changed. If it cannot be opened
        again, it leaves."""
        text = self._texts[key]
        self.target.close(text.slot)
        try:
            text.slot = self.target.open(text.context)
        except BaseException:
            del self._texts[key]
            self._planner.drop(key)
            text.drafter.stop()
            raise
        text.drafter.resume(text.start_as(key))

    def drop(self, key: int) -> None:
        """Remove a text, finished or not; does nothing if it has left already."""
        text = self._texts.pop(key, None)
        if text is not None:
            self._planner.drop(key)
            text.attempt(partial(self.target.close, text.slot), None)
            text.attempt(text.drafter.stop, None)

    def close(self) -> None:
        """Remove all texts."""
        for key in list(self._texts):
            self.drop(key)

    def step(self, keys: Collection[int] | None = None) -> list[Round]:
        """Guess, verify all guesses in one pass, keep what plain decoding would produce, learn.

        keys: the texts that take part, by default all. Texts whose prompt is still being read, and
        those that fail, have no round.
        """
        times = [self._clock()]
        taking_part = {k: t for k, t in self._texts.items() if keys is None or k in keys}
        writing, waiting = sorted_texts(taking_part, self.target)
        ahead = sum(text.ahead for text in writing.values())
        proposals = {key: partial(self._propose, text) for key, text in writing.items()}
        plans = self._planner.plan(proposals, ahead)
        trees = {key: writing[key].complete(tree) for key, tree in plans.items()}
        room = PREFILL_ALONE
        if waiting and trees:
            rows = sum(1 + len(tree) for tree in trees.values())
            unread = sum(text.ahead for text in waiting.values())
            room = self._planner.prefill(rows, len(waiting), unread)
        pieces = pieces_within(room, waiting)
        times.append(self._clock())
        scores, rounds = self._score(trees, pieces), list[Round]()
        with self._all_or_none(scores):
            paths = {key: path for key in scores if (path := self._walk(key, trees, scores))}
            times.append(self._clock())
            self.target.commit({self._texts[key].slot: path for key, path in paths.items()})
            times.append(self._clock())
            beside = bool(pieces)
            heard = [self._observe(k, trees, scores, path, beside) for k, path in paths.items()]
            times.append(self._clock())
            timed = self._timed([round for round in heard if round], pieces, times)
            self._planner.observe(timed)
            rounds = timed
        for key, text in taking_part.items():
            if text.finished:
                self.drop(key)
        return rounds

    def _propose(self, text: Generation, budget: int) -> Tree:
        """The text's tree; one whose drafter fails proposes nothing and ends."""
        return text.attempt(partial(text.propose, self.target, budget), EMPTY)

    def _score(
        self, trees: Mapping[int, Tree], pieces: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        """Raw logits of every text's tree, by key. A text that the target refuses fails alone."""
        trees = {k: tree for k, tree in trees.items() if not self._texts[k].finished}
        if not (trees or pieces):
            return {}
        slots = {self._texts[key].slot: key for key in trees}
        try:
            scores = self.target.score(
                {slot: trees[key] for slot, key in slots.items()},
                {self._texts[key].slot: piece for key, piece in pieces.items()},
            )
        except Exception as error:
            if len(trees) + len(pieces) == 1:
                self._texts[next(iter([*trees, *pieces]))].fail(error)
                return {}
            # Scoring them one by one shows which one is at fault.
            alone = [self._score({key: tree}, {}) for key, tree in trees.items()]
            alone += [self._score({}, {key: piece}) for key, piece in pieces.items()]
            return {key: rows for scores in alone for key, rows in scores.items()}
        return {slots[slot]: rows for slot, rows in scores.items()}

    def _walk(self, key: int, trees: Mapping[int, Tree], scores: _Scores) -> Path | None:
        text = self._texts[key]
        return text.attempt(partial(text.walk, trees[key], scores[key]), None)

    def _observe(
        self, key: int, trees: Mapping[int, Tree], scores: _Scores, path: Path, beside: bool
    ) -> Round | None:
        """beside: whether the pass read prompts, too, so that its time says little."""
        text = self._texts[key]
        prefill = text.has_read or beside
        observe = partial(text.observe, key, trees[key], scores[key], path, prefill)
        return text.attempt(observe, None)

    @contextmanager
    def _all_or_none(self, keys: Collection[int]) -> Iterator[None]:
        """End these texts on an interruption or a failed commit: they may have taken tokens that
        the cache does not hold, or that nobody will hear of. An error that is theirs is not raised:
        whoever plays the round may wait for another text."""
        try:
            yield
        except BaseException as error:
            for key in keys:  # all first, as dropping takes long enough to be interrupted
                self._texts[key].fail(error)
            for key in keys:
                self.drop(key)
            if not keys or isinstance(error, INTERRUPTIONS):
                raise

    def _timed(
        self, rounds: Sequence[Round], pieces: Mapping[int, int], times: Sequence[float]
    ) -> list[Round]:
        """The rounds, each with its text's share of the time."""
        draft, target, commit, observe = (end - begin for begin, end in pairwise(times))
        rows = {round.key: 1 + len(round.tree) + self._texts[round.key].ahead for round in rounds}
        each = target / max(1, sum(rows.values()) + sum(pieces.values()))
        for key, piece in pieces.items():
            self._texts[key].reading += each * piece
        timed = []
        for round in rounds:
            text, texts = self._texts[round.key], len(rounds)
            spent = each * rows[round.key] + text.reading
            text.reading, text.has_begun = 0.0, True
            seconds = Seconds((draft + observe) / texts, spent, commit / texts)
            timed.append(round.with_(seconds=seconds))
        return timed


def decode(
    target: Target,
    generations: Sequence[Generation],
    budget: int | Planner = DEFAULT_BUDGET,
    clock: Clock = perf_counter,
) -> Iterator[Round]:
    """Generate all texts together and yield their rounds; `key` is a text's place in the list.

    budget: most nodes per tree, or a planner that decides in each round. clock: see `Batch`.

    The caller may stop between any two rounds. A text that fails does not stop the others; its
    error is raised when they have ended.

    Raises UsageError if a prompt does not fit, or a drafter needs what the target lacks.
    """
    batch = Batch(target, FixedBudget(budget) if isinstance(budget, int) else budget, clock)
    try:
        places = {batch.add(generation): place for place, generation in enumerate(generations)}
        while batch:
            for round in batch.step():
                yield round.with_(key=places[round.key])
    finally:
        batch.close()
    for generation in generations:
        if generation.error is not None:
            raise generation.error
