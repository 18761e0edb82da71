"""Texts that join and leave a batch at any time: each is the one that it would be alone.

Hypothesis draws schedules, and makes the one that fails as short as it can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draft_hosts import Ticking
from tests.helpers import RandomTrees, cut
from tests.prompt_parts import toy_drafter

from paceline.drafters import METHODS
from paceline.generation import Generation
from paceline.loop import Batch, FixedBudget
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Planner
from paceline.records import Path, Round, TextStart
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.testing.reference import Reference
from paceline.tree import Tree

MOST_TEXTS = 32
REFERENCE = Reference(ToyTarget())
NAMES = [*METHODS, "anpd:branches=3,n=3", "ppd 4x2", "auto ppd", "random trees"]
FAILING = ["start", "resume", "see", "propose", "observe", "stop", "processor"]
# Prompts of all lengths, some of which share their beginnings; the last is read in several pieces.
STORY = [3, 1, 4, 1, 5, *REFERENCE.continued([3, 1, 4, 1, 5], 80, Sampler(5, 1.0))]
PROMPTS = [STORY[:1], STORY[:2], STORY[:9], STORY[:30], [*STORY[:9], 8, 8, 2], [7] * 12, STORY]


class CountedToy(ToyTarget):
    """Knows which slots are open."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use: set[int] = set()

    def open(self, context: Sequence[int]) -> int:
        slot = super().open(context)
        self.in_use.add(slot)
        return slot

    def close(self, slot: int) -> None:
        super().close(slot)
        self.in_use.remove(slot)


class BoomError(BaseException):
    """What the failing parts below raise: no `Exception`, as a panic in a library in Rust."""


class Fuse:
    """Raises when it has been asked so many times; never where no number is given."""

    def __init__(self, count: int | None, error: type[BaseException]) -> None:
        self.count, self.error = count, error

    def burn(self) -> None:
        if self.count is not None:
            self.count -= 1
            if self.count < 0:
                raise self.error


class Failing(Drafter):
    """A drafter one of whose verbs fails some time."""

    def __init__(
        self, drafter: Drafter, verb: str, count: int, error: type[BaseException] = BoomError
    ) -> None:
        self.requires, self.sized_by = drafter.requires, drafter.sized_by
        self.drafter, self.verb, self.fuse = drafter, verb, Fuse(count, error)

    def _do(self, verb: str, call: Callable[..., Any], *values: Any) -> Any:
        if verb == self.verb:
            self.fuse.burn()
        return call(*values)

    def start(self, text: TextStart) -> None:
        self._do("start", self.drafter.start, text)

    def resume(self, text: TextStart) -> None:
        self._do("resume", self.drafter.resume, text)

    def observe_states(self, states: torch.Tensor) -> None:
        self._do("see", self.drafter.observe_states, states)

    def propose(self, budget: int) -> Tree:
        tree = self._do("propose", self.drafter.propose, budget)
        assert isinstance(tree, Tree)
        return tree

    def observe(self, round: Round) -> None:
        self._do("observe", self.drafter.observe, round)

    def stop(self) -> None:
        self._do("stop", self.drafter.stop)


def processor(count: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Changes nothing, and fails at the token of that number."""
    fuse = Fuse(count, BoomError)

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        fuse.burn()
        return scores

    return process


class Text:
    """A text of a schedule, and what it has to be."""

    def __init__(self, rng: random.Random) -> None:
        name = rng.choice(NAMES)
        drafter = RandomTrees(seed=rng.randrange(99)) if " trees" in name else toy_drafter(name)
        verb = rng.choice([*[None] * 12, *FAILING])
        self.fails = verb is not None
        if verb not in (None, "processor"):
            drafter = Failing(drafter, str(verb), rng.randint(0, 4))
        processors = (processor(rng.randint(0, 6)),) if verb == "processor" else ()
        self.plain_sampler = Sampler(rng.randrange(3), rng.choice([0.0, 0.8]))
        sampler = Sampler(self.plain_sampler.seed, self.plain_sampler.temperature)
        if processors:
            sampler = Sampler(sampler.seed, sampler.temperature, processors=processors)
        prompt = list(rng.choice(PROMPTS))
        self.eos_ids = rng.sample(range(16), rng.choice([0, 0, 0, 2]))
        self.generation = Generation(
            prompt,
            drafter,
            Stopping(rng.randint(1, 14), self.eos_ids),
            sampler,
            [STORY[20:60]] if rng.random() < 0.3 else [],
            budget=rng.choice([None, None, 0, 3, 20]),
        )
        prompt.append(0)  # its caller's own list
        self.dropped = False
        self._expect()

    def rewrite(self, rng: random.Random) -> None:
        """Take tokens back, but none of the prompt, and put others there."""
        context = self.generation.context
        kept = rng.randint(len(self.generation.prompt), len(context))
        context[kept:] = [rng.randrange(16) for _ in range(rng.randint(0, 12))]
        self._expect()

    def check(self, ended: bool = True) -> None:
        """The text is what it would be alone, as far as it has come."""
        said = self.generation.context[len(self.before) :]
        assert self.generation.context[: len(self.before)] == self.before
        assert [*self.generation.prompt, *self.generation.output] == self.generation.context
        error = self.generation.error
        assert error is None or (self.fails and isinstance(error, BoomError))
        if ended and error is None and not self.dropped:
            assert said == self.expected
            ends = bool(said) and said[-1] in self.eos_ids
            assert self.generation.stopping.reason == ("eos" if ends else "length")
        else:
            assert said == self.expected[: len(said)]

    def _expect(self) -> None:
        self.before = list(self.generation.context)
        left = self.generation.stopping.remaining
        stream = REFERENCE.continued(self.before, left, self.plain_sampler)
        self.expected = cut(stream, self.eos_ids)


class Schedule:
    """A batch, and the texts that were ever in it."""

    def __init__(self, planner: Planner) -> None:
        self.target = CountedToy()
        self.batch = Batch(self.target, planner, Ticking(1e-3))
        self.texts: dict[int, Text] = {}

    def act(self, verb: str, seed: int) -> None:
        rng = random.Random(seed)
        here = [key for key in self.texts if key in self.batch]
        if verb == "add" and len(here) < MOST_TEXTS:
            self.add(Text(rng))
        elif verb == "crowd":
            for _ in range(MOST_TEXTS - len(here)):
                self.add(Text(rng))
        elif verb == "step":
            self.step(None if rng.random() < 0.3 else {key for key in here if rng.random() < 0.6})
        elif verb == "drop" and here:
            key = rng.choice(here)
            self.texts[key].dropped = True
            self.batch.drop(key)
            self.batch.drop(key)
        elif verb == "rewrite" and here:
            key = rng.choice(here)
            self.texts[key].rewrite(rng)
            self.rewrite(key)
        assert len(self.target.in_use) == len(self.batch)

    def add(self, text: Text) -> None:
        try:
            self.texts[self.batch.add(text.generation)] = text
        except BoomError:
            assert text.fails
            text.dropped = True

    def rewrite(self, key: int) -> None:
        try:
            self.batch.rewrite(key)
        except BoomError:
            assert self.texts[key].fails

    def step(self, keys: set[int] | None) -> None:
        before = {key: len(text.generation.context) for key, text in self.texts.items()}
        rounds = self.batch.step(keys)
        played = {round.key: len(round.path.tokens) for round in rounds}
        assert len(played) == len(rounds)
        for key, text in self.texts.items():
            grown = len(text.generation.context) - before[key]
            if text.generation.error is None:
                assert grown == played.get(key, 0)
            assert keys is None or key in keys or grown == 0
            assert (key in self.batch) == (not text.generation.finished and not text.dropped)
            text.check(ended=text.generation.finished)

    def finish(self) -> None:
        for _ in range(200):
            if not self.batch:
                break
            self.step(None)
        assert not self.batch, "texts do not come to their end"
        for text in self.texts.values():
            text.check()
        assert self.target.in_use == set()


ACTIONS = st.tuples(
    st.sampled_from(["add", "add", "step", "step", "step", "drop", "rewrite"]),
    st.integers(0, 1 << 30),
)
PLANNERS: dict[str, Callable[[], Planner]] = {
    "none": lambda: FixedBudget(0),
    "few": lambda: FixedBudget(3),
    "many": lambda: FixedBudget(24),
    "planned": TreePlanner,
}


@given(st.lists(ACTIONS, max_size=16), st.sampled_from(sorted(PLANNERS)))
@settings(max_examples=120)
def test_texts_that_come_and_go_are_those_that_each_is_alone(
    actions: list[tuple[str, int]], planner: str
) -> None:
    schedule = Schedule(PLANNERS[planner]())
    for verb, seed in actions:
        schedule.act(verb, seed)
    schedule.finish()


@given(st.lists(ACTIONS, max_size=30), st.sampled_from(sorted(PLANNERS)), st.integers(0, 999))
@settings(max_examples=10)
def test_a_crowd_is_no_different(actions: list[tuple[str, int]], planner: str, seed: int) -> None:
    """As many texts as there may be, which are joined by others where some leave."""
    schedule = Schedule(PLANNERS[planner]())
    schedule.act("crowd", seed)
    for verb, number in actions:
        schedule.act(verb, number)
    schedule.finish()


@given(st.lists(ACTIONS, max_size=20))
@settings(max_examples=30)
def test_closing_a_batch_leaves_no_slot_open(actions: list[tuple[str, int]]) -> None:
    schedule = Schedule(FixedBudget(5))
    for verb, seed in actions:
        schedule.act(verb, seed)
    schedule.batch.close()
    assert not len(schedule.batch)
    assert schedule.target.in_use == set()
    for text in schedule.texts.values():
        text.check(ended=text.generation.finished)


def test_a_drafter_that_cannot_stop_fails_alone() -> None:
    """Its text has ended by then; the other one has its round of that pass all the same."""
    batch = Batch(CountedToy(), FixedBudget(3))
    failing = Failing(toy_drafter("anpd"), "stop", 0)
    first = Generation([3, 1], failing, Stopping(1))
    second = Generation([4, 1], toy_drafter("plain"), Stopping(2))
    keys = [batch.add(first), batch.add(second)]
    assert [round.key for round in batch.step()] == keys
    assert isinstance(first.error, BoomError) and first.stopping.reason == "length"
    batch.step()
    assert second.error is None
    assert second.output == REFERENCE.continued([4, 1], 2, Sampler())


def test_a_drafter_that_cannot_propose_leaves_its_text_as_it_is() -> None:
    batch = Batch(CountedToy(), FixedBudget(3))
    drafter = Failing(Failing(toy_drafter("anpd"), "propose", 0), "stop", 0, MemoryError)
    text = Generation([3, 1], drafter, Stopping(9))
    batch.add(text)
    assert batch.step() == [] and isinstance(text.error, BoomError), "what went wrong first"
    assert not text.output and not batch


def test_a_prompt_that_the_target_refuses_fails_alone() -> None:
    """In the same pass, another text is written and a third one's prompt is read."""
    target = CountedToy()
    batch = Batch(target, FixedBudget(0))
    prompts = [[3, 1], [7] * 20, [4, 1] * 10]
    texts = [Generation(prompt, toy_drafter("plain"), Stopping(8)) for prompt in prompts]
    first = batch.add(texts[0])
    batch.step()
    refused, other = map(batch.add, texts[1:])
    score = target.score

    def picky(trees: Mapping[int, Tree], prefill: Mapping[int, int]) -> dict[int, torch.Tensor]:
        if texts[1].slot in (*trees, *prefill):
            raise MemoryError("no room")
        return score(trees, prefill)

    target.score = picky  # type: ignore[method-assign,assignment]
    assert [round.key for round in batch.step()] == [first]
    assert refused not in batch and isinstance(texts[1].error, MemoryError)
    assert other in batch and target.pending(texts[2].slot) < 19
    while batch:
        batch.step()
    assert [text.error is None for text in texts] == [True, False, True]
    assert texts[2].output == REFERENCE.continued(prompts[2], 8, Sampler())


def test_a_commit_that_fails_ends_the_texts_of_its_round_and_no_others() -> None:
    """Whoever plays the round may wait for a text whose prompt is still being read."""
    target = CountedToy()
    batch = Batch(target, FixedBudget(0))
    first = Generation([3, 1], toy_drafter("plain"), Stopping(8))
    batch.add(first)
    batch.step()
    other = Generation([7] * 60, toy_drafter("plain"), Stopping(2))
    batch.add(other)
    commit = target.commit

    def boom(paths: Mapping[int, Path]) -> None:
        raise MemoryError("no room")

    target.commit = boom  # type: ignore[method-assign]
    assert batch.step() == [] and len(batch) == len(target.in_use) == 1
    assert isinstance(first.error, MemoryError) and first.stopping.reason == "error"
    target.commit = commit  # type: ignore[method-assign]
    while batch:
        batch.step()
    assert other.error is None
    assert other.output == REFERENCE.continued([7] * 60, 2, Sampler())


def test_an_error_that_is_no_texts_is_raised() -> None:
    class Breaking(CountedToy):
        def commit(self, paths: Mapping[int, Path]) -> None:
            raise MemoryError("no room")

    batch = Batch(Breaking(), FixedBudget(0))
    batch.add(Generation([7] * 1100, toy_drafter("plain"), Stopping(2)))  # more than one pass reads
    with pytest.raises(MemoryError):
        batch.step()


def test_a_text_that_cannot_be_opened_again_leaves() -> None:
    target, stopped = CountedToy(), []

    class Stopped(RandomTrees):
        def stop(self) -> None:
            stopped.append(self)

    drafter, planner = Stopped(7), TreePlanner()
    batch = Batch(target, planner)
    key = batch.add(Generation(PROMPTS[1], drafter, Stopping(8)))

    def boom(context: Sequence[int]) -> int:
        raise BoomError

    target.open = boom  # type: ignore[method-assign]
    with pytest.raises(BoomError):
        batch.rewrite(key)
    assert not batch and stopped == [drafter] and not target.in_use and not planner._texts
    batch.drop(key)
    batch.close()
