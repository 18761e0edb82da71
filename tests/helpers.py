"""What several test files share: references written without the loop, and hostile drafters."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from paceline.loop import DEFAULT_BUDGET, Generation, decode
from paceline.protocols import Drafter, Planner, Target
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.tree import EMPTY, ROOT, Tree

Condition = Callable[[int], bool]


def naive_stream(
    target: Target, prompt: Sequence[int], count: int, sampler: Sampler = GREEDY
) -> list[int]:
    """Plain decoding without the loop, the walk or the cache: one token, one fresh pass."""
    text = list(prompt)
    for _ in range(count):
        target.forget()
        slot = target.open(text)
        rows = target.score({slot: EMPTY})[slot]
        target.close(slot)
        text.append(sampler.draw(rows[0], text))
    return text[len(prompt) :]


def on_its_model(session: Session, method: str) -> Session:
    """Another session on the same target."""
    return Session(session.target, session.tokenizer, method, eos_ids=session.eos_ids)


def cut(
    stream: Sequence[int], eos_ids: Collection[int] = (), limit: int | None = None
) -> list[int]:
    """`stream` up to and including its first EOS id, and no longer than `limit`."""
    kept: list[int] = []
    for token in stream[:limit]:
        kept.append(token)
        if token in eos_ids:
            break
    return kept


def play(
    target: Target, generations: Sequence[Generation], budget: int | Planner = DEFAULT_BUDGET
) -> list[list[Round]]:
    """Decode to the end; the rounds of each generation, checked for what must always hold."""
    rounds: list[list[Round]] = [[] for _ in generations]
    for round in decode(target, generations, budget):
        assert not isinstance(budget, int) or len(round.tree) <= budget
        assert len(round.logits) == len(round.tree) + 1
        assert len(round.path.tokens) == len(round.path.nodes) + 1
        # Accepted nodes are a path from the root, and carry the tokens that were said.
        if round.path.nodes:
            assert round.path.nodes == round.tree.path_to(round.path.nodes[-1])
        assert round.path.tokens[:-1] == tuple(round.tree.tokens[n] for n in round.path.nodes)
        assert round.first == (not rounds[round.key])
        rounds[round.key].append(round)
    for generation, own in zip(generations, rounds, strict=True):
        assert generation.output == [token for round in own for token in round.path.tokens]
        assert generation.context == [*generation.prompt, *generation.output]
        check_stats(own, generation.output)
    return rounds


def check_stats(rounds: Sequence[Round], output: Sequence[int]) -> None:
    """The counters tell the same story as the rounds."""
    stats = Stats()
    for round in rounds:
        stats.add(round)
    assert stats.tokens == len(output) == sum(len(round.path.tokens) for round in rounds)
    assert stats.rounds == len(rounds) <= stats.tokens
    assert stats.tokens == stats.accepted + stats.rounds
    guesses = sum(token < round.vocab_size for round in rounds for token in round.tree.tokens)
    assert stats.drafted == guesses >= stats.accepted
    histogram = stats.acceptance_histogram
    assert sum(histogram.values()) == stats.rounds
    assert sum(length * times for length, times in histogram.items()) == stats.tokens
    assert stats.mean_acceptance_length == stats.tokens / stats.rounds
    assert 0 <= stats.draft_acceptance_rate <= 1
    parts = [stats.prefill_seconds, stats.draft_seconds, stats.target_seconds, stats.commit_seconds]
    assert min(parts) >= 0
    assert stats.seconds == pytest.approx(sum(parts))  # since 3.12 Python's sum rounds but once


def generate(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    limit: int,
    *,
    sampler: Sampler = GREEDY,
    eos_ids: Collection[int] = (),
    conditions: Sequence[Condition] = (),
    references: Sequence[Sequence[int]] = (),
    budget: int | Planner = DEFAULT_BUDGET,
) -> tuple[list[int], list[Round], str | None]:
    """One text to its end: tokens, rounds, reason."""
    stopping = Stopping(limit, eos_ids, conditions)
    generation = Generation(prompt, drafter, stopping, sampler, references)
    (rounds,) = play(target, [generation], budget)
    return generation.output, rounds, stopping.reason


class Counting:
    """A stop condition that hears every token and stops after `count` of them; None for never."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.heard: list[int] = []

    def __call__(self, token: int) -> bool:
        self.heard.append(token)
        return len(self.heard) == self.count


class Hostile(Drafter):
    """Base of the drafters below: knows its text, and draws from a generator of its own."""

    def __init__(self, vocab_size: int = 16, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.random = random.Random(seed)
        self.text: list[int] = []

    def start(self, text: TextStart) -> None:
        self.text = list(text.context)

    def observe(self, round: Round) -> None:
        self.text.extend(round.path.tokens)


class RandomTrees(Hostile):
    """Any tree of any size, with twins among siblings; `beyond` adds that many virtual ids."""

    def __init__(self, vocab_size: int = 16, seed: int = 0, beyond: int = 0) -> None:
        super().__init__(vocab_size, seed)
        self.beyond = beyond

    def propose(self, budget: int) -> Tree:
        size = self.random.randint(0, budget)
        return Tree(
            tuple(self.random.randrange(self.vocab_size + self.beyond) for _ in range(size)),
            tuple(self.random.randrange(-1, node) for node in range(size)),
        )


class Oracle(Hostile):
    """Knows the whole text: `story` is prompt and plain decoding's continuation.

    siblings: wrong guesses before each right one, each with a wrong child.
    twins: hang equal siblings beside each right guess, the walked one first.
    virtual: hang virtual ids below each right guess.
    wrong: never right, only the wrong guesses.
    """

    def __init__(
        self,
        story: Sequence[int],
        vocab_size: int = 16,
        seed: int = 0,
        *,
        siblings: int = 0,
        twins: int = 0,
        virtual: int = 0,
        wrong: bool = False,
    ) -> None:
        super().__init__(vocab_size, seed)
        self.story = list(story)
        self.siblings, self.twins, self.virtual, self.wrong = siblings, twins, virtual, wrong

    def propose(self, budget: int) -> Tree:
        tokens: list[int] = []
        parents: list[int] = []

        def add(token: int, parent: int) -> int:
            if len(tokens) < budget:
                tokens.append(token)
                parents.append(parent)
            return len(tokens) - 1

        node = ROOT
        for right in self.story[len(self.text) :]:
            if len(tokens) >= budget:
                break
            for step in range(1, self.siblings + 1):
                twig = add((right + step) % self.vocab_size, node)
                add(self.random.randrange(self.vocab_size), twig)
            for step in range(self.virtual):
                add(self.vocab_size + step, node)
            if self.wrong:
                node = add((right + 1) % self.vocab_size, node)
                continue
            parent, before = node, len(tokens)
            node = add(right, parent)
            if len(tokens) == before:
                break
            for _ in range(self.twins):
                twin = add(right, parent)
                add(self.random.randrange(self.vocab_size), twin)
        return Tree(tuple(tokens), tuple(parents))


def hostile_drafters(
    story: Sequence[int], vocab_size: int = 16, seed: int = 0
) -> dict[str, Callable[[], Drafter]]:
    """Name -> maker of a drafter that guesses in a way no real one does."""
    return {
        "random trees": lambda: RandomTrees(vocab_size, seed),
        "random trees with virtual ids": lambda: RandomTrees(vocab_size, seed, beyond=8),
        "wrong guesses": lambda: Oracle(story, vocab_size, seed, siblings=2, wrong=True),
        "oracle": lambda: Oracle(story, vocab_size, seed),
        "oracle among siblings": lambda: Oracle(story, vocab_size, seed, siblings=3),
        "oracle among twins": lambda: Oracle(story, vocab_size, seed, twins=2),
        "oracle among virtual ids": lambda: Oracle(story, vocab_size, seed, virtual=2),
    }


def trees(
    max_size: int = 12, vocab_size: int = 4, weighted: bool | None = False
) -> st.SearchStrategy[Tree]:
    """Trees of any shape, twins among siblings included. weighted=None: with or without."""

    @st.composite
    def draw_tree(draw: st.DrawFn) -> Tree:
        size = draw(st.integers(0, max_size))
        tokens = draw(st.lists(st.integers(0, vocab_size - 1), min_size=size, max_size=size))
        parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
        weights = None
        if draw(st.booleans()) if weighted is None else weighted:
            # Few values, so that equal ones are frequent.
            share = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
            weights = tuple(draw(st.lists(share, min_size=size, max_size=size)))
        return Tree(tuple(tokens), tuple(parents), weights)

    return draw_tree()


def unweighted(tree: Tree) -> Tree:
    """The same guesses without the drafter's estimates."""
    return replace(tree, weights=None)


def token_path(tree: Tree, node: int) -> tuple[int, ...]:
    """The tokens from a child of the root to `node`, by following parents; () for ROOT."""
    path: list[int] = []
    while node != ROOT:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tuple(path)


def token_paths(tree: Tree) -> list[tuple[int, ...]]:
    """The token path of every node."""
    return [token_path(tree, node) for node in range(len(tree))]


def as_walked(rounds: Iterable[Round]) -> list[tuple[Tree, tuple[int, ...]]]:
    """What must be the same when the same call is made twice."""
    return [(round.tree, round.path.tokens) for round in rounds]
