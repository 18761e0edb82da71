"""The conformance suite of targets: the contract of `Target` as executable checks."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from paceline.protocols import (
    CAPABILITIES,
    CHAINS,
    HIDDEN_STATES,
    LAYER_OUTPUTS,
    SHADOW_TOKENS,
    TREES,
    VIRTUAL_TOKENS,
    Target,
)
from paceline.records import TargetInfo
from paceline.testing.chains import check_chains
from paceline.testing.reference import Reference, require
from paceline.testing.watched_target import WatchedTarget
from paceline.tree import EMPTY, SHADOWS, Tree

# Longer contexts are not filled to test their end.
_FILLED = 512


def check_target(
    make: Callable[[], Target],
    *,
    tolerance: float = 0.0,
    seed: int = 0,
    schedules: int = 10,
    steps: int = 20,
) -> None:
    """Check a target against its contract, and each of its rows against the text read from scratch.

    make: returns a new target that holds no texts, always with the same model.
    tolerance: largest allowed difference of logits, for models that round.
    seed: of texts, trees and schedules.
    schedules, steps: number and length of random schedules of texts that come and go.

    Trees have branches if `TREES` is offered; chains, virtual tokens, shadows and hidden states are
    checked if offered.

    Raises AssertionError for the first violation.
    """
    suite = _Suite(make, tolerance, seed, Reference(make()))
    suite.check_description()
    suite.check_reading()
    suite.check_commits()
    suite.check_reuse()
    suite.check_closing()
    suite.check_end_of_context()
    for number in range(schedules):
        suite.check_schedule(number, steps)
    capabilities = suite.watched().target.capabilities
    if CHAINS in capabilities:
        check_chains(suite.watched())
    if SHADOW_TOKENS in capabilities:
        suite.check_shadows()
    if HIDDEN_STATES in capabilities:
        suite.check_states()
        if VIRTUAL_TOKENS in capabilities:
            suite.check_virtual_tokens()


@dataclass
class _Suite:
    """See `check_target`."""

    make: Callable[[], Target]
    tolerance: float
    seed: int
    reference: Reference

    def watched(self, number: int = 0) -> WatchedTarget:
        """A new target."""
        rng = random.Random(f"{self.seed} {number}")  # noqa: S311 - no secret
        return WatchedTarget(self.make(), self.reference, self.tolerance, rng)

    def check_description(self) -> None:
        """A target describes itself correctly."""
        target = self.watched().target
        require(target.vocab_size > 0, f"vocab_size is {target.vocab_size}: give a positive one")
        unknown = ", ".join(sorted(target.capabilities - CAPABILITIES))
        require(not unknown, f"there is no capability {unknown}: see paceline.protocols")
        info = target.describe()
        require(isinstance(info, TargetInfo), f"describe returned {info!r}, not a TargetInfo")

    def check_reading(self) -> None:
        """Prompts in one pass, or in pieces, alone or beside a tree."""
        watched = self.watched()
        for length in (1, 2, 3, 17):
            slot = watched.open(watched.tokens(length))
            watched.play(slot, 3)
            watched.compare_all()
        for most in (1, 4, 100):
            long = watched.open(watched.tokens(19))
            while watched.target.pending(long) > 4:
                watched.prefill(long, most)
            for other in [slot for slot in watched.texts if slot != long]:
                watched.round({other: watched.tree(2)}, {long: 1})
            watched.compare_all()

    def check_commits(self) -> None:
        """Any path of a tree can be kept, and nothing else is."""
        watched = self.watched()
        tree = Tree.chain(watched.tokens(4))
        if TREES in watched.target.capabilities:
            tree = Tree(tuple(watched.tokens(7)), (-1, -1, 0, 1, 1, 4, 2))
        prompt = watched.tokens(6)
        for node in range(-1, len(tree)):
            slot = watched.open(prompt)
            watched.score({slot: tree})
            watched.commit({slot: (tree, tree.path_to(node) if node >= 0 else ())})
            watched.play(slot, 5)
            watched.compare_all()
        for _ in range(5):
            watched.play(slot, 6)

    def check_reuse(self) -> None:
        """Texts with a common prefix are scored correctly, however much of it is reused."""
        watched = self.watched()
        prompt = watched.tokens(14)
        first = watched.open(prompt)
        watched.play(first, 4)
        text = list(watched.texts[first])
        beginnings = [prompt, text, prompt[:5], [*prompt[:5], *watched.tokens(4)], prompt[:1]]
        for beginning in beginnings:  # beside the open text
            watched.open(beginning)
        watched.compare_all()
        watched.close(first)
        for beginning in beginnings:  # after the closed one
            watched.open(beginning)
        watched.compare_all()
        for slot in list(watched.texts):
            watched.close(slot)
        watched.target.forget()
        again = watched.open(text)
        require(
            watched.target.pending(again) == len(text) - 1,
            "forget kept something: a text that is not open must be read again",
        )
        watched.target.forget()
        watched.compare_all()

    def check_closing(self) -> None:
        """Closing a slot twice may be refused, and must not touch other texts."""
        watched = self.watched()
        kept, closed = watched.open(watched.tokens(7)), watched.open(watched.tokens(5))
        watched.compare_all()
        watched.close(closed)
        with suppress(Exception):
            watched.target.close(closed)
        watched.open(watched.tokens(4))
        watched.open(watched.tokens(6))
        watched.compare_all()
        watched.play(kept, 4)
        # Closing without a commit also drops what was scored.
        other = watched.open(watched.tokens(5))
        trees = {kept: watched.tree(4), other: watched.tree(4)}
        watched.score(trees)
        watched.commit({kept: (trees[kept], watched.some_path(trees[kept]))})
        watched.close(other)
        watched.compare_all()

    def check_end_of_context(self) -> None:
        """The last position of the context can be read."""
        watched = self.watched()
        most = watched.target.max_context
        if most is None or most > _FILLED or most < 4:
            return
        slot = watched.open(watched.tokens(most - 3))
        tree = Tree.chain(watched.tokens(3))
        watched.score({slot: tree})
        watched.commit({slot: (tree, (0, 1))})
        watched.score({slot: EMPTY})

    def check_schedule(self, number: int, steps: int) -> None:
        """Texts come, go and pause in any order without affecting one another."""
        watched = self.watched(number + 1)
        rng = random.Random(f"{self.seed} {number} schedule")  # noqa: S311 - no secret
        begun = watched.tokens(12)
        for _ in range(steps):
            if len(watched.texts) < 5 and rng.random() < 0.5:
                length = rng.randrange(len(begun))
                watched.open([*begun[:length], *watched.tokens(rng.randint(1, 6))])
            if watched.texts and rng.random() < 0.2:
                watched.close(rng.choice(list(watched.texts)))
            if rng.random() < 0.1:
                watched.target.forget()
            _random_pass(watched, rng)
        if watched.texts:
            watched.compare_all()

    def check_shadows(self) -> None:
        """Shadows are read as the tokens they stand for, and are not kept."""
        watched = self.watched()
        slot = watched.open(watched.tokens(6))
        for _ in range(3):
            real = watched.tree(6)
            marks = [SHADOWS * (node % 2) for node in range(len(real))]
            shadowed = tuple(token + mark for token, mark in zip(real.tokens, marks))
            watched.round({slot: Tree(shadowed, real.parents)})
        watched.compare_all()

    def check_virtual_tokens(self) -> None:
        """Virtual tokens have ids of their own, are scored, and leave nothing behind."""
        watched = self.watched()
        target, size = watched.target, watched.target.vocab_size
        embeddings = target.embed(torch.arange(2)) + 0.5
        first = target.add_virtual_tokens(embeddings)
        require(first >= size, f"the first virtual token is {first}, an id of the vocabulary")
        again = target.add_virtual_tokens(embeddings)
        require(again == first, f"known embeddings got another id, {again}, not {first}")
        slot = watched.open(watched.tokens(6))
        for _ in range(3):
            # Virtual tokens come last, the only place for them in a chain.
            real = watched.tree(3)
            tree = Tree((*real.tokens, first, first + 1), (*real.parents, 2, 3))
            rows = watched.round({slot: tree})[slot]
            require(not bool(rows[-2:].isnan().any()), "rows of virtual tokens are not numbers")
        watched.compare_all()

    def check_states(self) -> None:
        """Hidden states belong to the text, and are what the output head reads."""
        watched = self.watched()
        early = watched.open(watched.tokens(9))
        watched.compare_all()
        watched.target.keep_states()
        watched.open(watched.tokens(8))
        for _ in range(3):
            watched.compare_all()
            watched.play(early, 4)
        for slot, text in watched.texts.items():
            self._check_states_of(watched.target, slot, text)
        if LAYER_OUTPUTS in watched.target.capabilities:
            self._check_outputs(watched)
        ids = torch.tensor([1, 0])
        (weights, biases), (some, few) = (watched.target.output_head(x) for x in (None, ids))
        fits = torch.equal(weights[ids], some) and torch.equal(biases[ids], few)
        require(fits, "output_head(tokens) is not that part of output_head()")

    def _check_outputs(self, watched: WatchedTarget) -> None:
        target = watched.target
        before = {slot: target.states(slot).clone() for slot in watched.texts}
        target.keep_states((1,))
        for _ in range(3):
            watched.compare_all()
            for slot in watched.texts:
                watched.play(slot, 4)
        for slot, states in before.items():
            found, given = target.states(slot), target.states(slot, (1,))
            same = torch.allclose(found[: len(states)], states, atol=1e-3, rtol=1e-3)
            require(same, "the last states change if outputs of layers are kept as well")
            require(
                given.shape == found.shape and not torch.equal(given, found),
                f"the outputs of a layer are {tuple(given.shape)}, its last states "
                f"{tuple(found.shape)}: they must be other numbers of the same shape",
            )

    def _check_states_of(self, target: Target, slot: int, text: list[int]) -> None:
        states = target.states(slot)
        require(
            len(states) == len(text) - 1,
            f"{len(states)} states of a text of {len(text)} tokens: all but the root must have one",
        )
        weights, biases = target.output_head()
        for place, state in enumerate(states):
            said = int((weights @ state + biases).argmax())
            row = self.reference.row(text[: place + 1])
            require(
                float(row[said]) >= float(row.max()) - self.tolerance,
                f"the output head maps state {place} to token {said}, which is not the likeliest",
            )


def _random_pass(watched: WatchedTarget, rng: random.Random) -> None:
    """Play a pass in which some texts are generated, some prefilled, and some wait."""
    taking_part = [slot for slot in watched.texts if rng.random() < 0.8]
    reading = {
        slot: rng.randint(1, 5)
        for slot in taking_part
        if watched.target.pending(slot) and rng.random() < 0.4
    }
    trees = {slot: watched.tree(rng.randint(0, 6)) for slot in taking_part if slot not in reading}
    if trees or reading:
        watched.round(trees, reading)
