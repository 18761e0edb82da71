"""The conformance suite of drafters: whatever they guess, the text equals plain decoding's."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paceline.generation import Generation
from paceline.loop import Batch, FixedBudget
from paceline.prefix import common_prefix
from paceline.protocols import Drafter, Target
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.testing.reference import Reference, require
from paceline.testing.watched_drafter import WatchedDrafter

_BUDGETS = (0, 1, 2, 7, 64)
_TEMPERATURES = (0.0, 1.0)
_ROOMY = 512  # tokens: enough for texts that are long before their last tokens are replaced


def check_drafter(
    make: Callable[[], Drafter],
    target: Callable[[], Target] | None = None,
    *,
    seed: int = 0,
    tokens: int = 20,
) -> None:
    """Generate texts with drafters and compare each with plain decoding.

    make: returns a new drafter.
    target: returns a new target with the model it drafts for, whose scores do not depend on how
    its texts are read; None for toys in memory, of 16 tokens.
    seed: of prompts and noise.
    tokens: most new ones per text.

    Covers budgets of 0 to 64 nodes at temperatures 0 and 1; texts that end inside accepted paths,
    by EOS ids, limits, and the model's context; references; texts whose last tokens are replaced;
    successive texts with one drafter, finished or abandoned; and several at once. Tokens are
    replaced only if the target's context has 512.

    Raises AssertionError for a text that differs, and for a drafter that raises, exceeds its
    budget, proposes unknown tokens, or modifies its inputs.
    """
    rng = random.Random(seed)  # noqa: S311
    suite = _Suite(make, ToyTarget if target is None else target, rng, tokens)
    suite.check_texts()
    suite.check_taken_back()
    suite.check_one_after_the_other()
    suite.check_together()
    if target is None:
        suite.check_full_context()


@dataclass(frozen=True)
class _Text:
    """A text to generate.

    limit: most new tokens possible. asked: how many are requested, if that is more. steps: rounds;
    None to play to its end.
    """

    prompt: Sequence[int]
    limit: int
    temperature: float = 0.0
    budget: int = 64
    eos_ids: Collection[int] = ()
    asked: int | None = None
    references: Sequence[Sequence[int]] = ()
    steps: int | None = None


@dataclass
class _Suite:
    """make, target: see `check_drafter`. length: of texts, in tokens."""

    make: Callable[[], Drafter]
    target: Callable[[], Target]
    rng: random.Random
    length: int

    def __post_init__(self) -> None:
        self.reference = Reference(self.target())
        self.vocab_size = self.reference.target.vocab_size
        prompt = self._tokens(5)
        # Greedy texts of small models repeat, so drafters that copy get long guesses accepted.
        self.prompt = [*prompt, *self.reference.continued(prompt, 40, Sampler())]

    def check_texts(self) -> None:
        """One text alone, with a new target and a new drafter each time."""
        for where, text in self._texts():
            watched = self._watched(f"at temperature {text.temperature} {where}")
            self._play(self.target(), watched, text)

    def _texts(self) -> Iterator[tuple[str, _Text]]:
        """Every budget; EOS ids throughout the text, and limits; references, whatever they are."""
        for warmth in _TEMPERATURES:
            start = partial(_Text, self.prompt, self.length, warmth)
            stream = self._plain(self.prompt, warmth)
            for budget in _BUDGETS:
                yield f"with a budget of {budget}", start(budget)
            for eos in stream[::3]:
                yield f"with EOS id {eos}", start(eos_ids=(eos,))
            for limit in (1, 2, 5):
                yield f"with {limit} new tokens", _Text(self.prompt, limit, warmth)
            for references in ([stream], [stream[3:], [], self._tokens(9)], [[1 << 20, 1 << 21]]):
                yield "with references", start(references=references)

    def check_taken_back(self) -> None:
        """A text that continues after its last tokens were replaced."""
        if (self.reference.target.max_context or _ROOMY) < _ROOMY:
            return
        for temperature in _TEMPERATURES:
            watched = self._watched(f"at temperature {temperature} after tokens were taken back")
            batch = Batch(self.target(), FixedBudget(7))
            sampler = self._sampler(temperature)
            generation = Generation(self.prompt, watched, Stopping(1000), sampler)
            key = batch.add(generation)
            for back, new in ((0, 0), (1, 0), (0, 3), (4, 2), (2, 40)):
                self._step(batch, generation, 2)
                kept = max(len(self.prompt), len(generation.context) - back)
                generation.context[kept:] = self._tokens(new)
                batch.rewrite(key)
                before = list(generation.context)
                self._step(batch, generation, 2)
                said = generation.context[len(before) :]
                expected = self.reference.continued(before, len(said), sampler)
                _compare(said, expected, watched.where)
            batch.close()

    def check_one_after_the_other(self) -> None:
        """One drafter for texts that continue one another, share a prefix or nothing; some are
        abandoned."""
        target, watched = self.target(), self._watched("with one text after the other")
        prompts = [self.prompt]
        prompts.append([*self.prompt, *self._plain(self.prompt, 0.0), *self._tokens(2)])
        prompts.append([*self.prompt[:9], *self._tokens(7)])
        prompts += [self.prompt[:3], self.prompt, self._tokens(1)]
        for place, prompt in enumerate(prompts):
            temperature = _TEMPERATURES[place % 2]
            text = _Text(prompt, self.length, temperature)
            self._play(target, watched, replace(text, steps=2))
            self._play(target, watched, text)

    def check_together(self) -> None:
        """Drafters in a batch whose texts join and leave at any time."""
        batch, texts = Batch(self.target(), FixedBudget(7)), dict[int, Generation]()
        for place in range(12):
            prompt = self.prompt[: self.rng.randint(1, 30)] + self._tokens(self.rng.randint(0, 5))
            sampler = Sampler(place, self.rng.choice(_TEMPERATURES))
            stopping = Stopping(self.rng.randint(1, self.length))
            watched = self._watched("among other texts")
            generation = Generation(prompt, watched, stopping, sampler)
            texts[batch.add(generation)] = generation
            for _ in range(self.rng.randint(0, 3)):
                batch.step([key for key in texts if self.rng.random() < 0.8])
            if self.rng.random() < 0.2:
                batch.drop(self.rng.choice(list(texts)))
        while batch:
            batch.step()
        for generation in texts.values():
            if generation.error is not None:
                raise generation.error
            said, sampler = generation.output, generation.sampler
            expected = self.reference.continued(generation.prompt, len(said), sampler)
            _compare(said, expected, "among other texts")

    def check_full_context(self) -> None:
        """Texts that end because the model's context is full."""
        for room in (1, 2, 7):
            watched = self._watched(f"with room for {room} tokens in the model's context")
            target = ToyTarget(max_context=len(self.prompt) + room)
            self._play(target, watched, _Text(self.prompt, room, asked=1000))

    def _play(self, target: Target, watched: WatchedDrafter, text: _Text) -> None:
        """Play a text to its end or for `steps` rounds, and compare it."""
        sampler = self._sampler(text.temperature)
        stopping = Stopping(text.asked or text.limit, text.eos_ids)
        generation = Generation(list(text.prompt), watched, stopping, sampler, text.references)
        batch = Batch(target, FixedBudget(text.budget))
        batch.add(generation)
        self._step(batch, generation, text.steps)
        batch.close()
        expected = self.reference.continued(text.prompt, text.limit, sampler)
        ends = [place for place, token in enumerate(expected, 1) if token in text.eos_ids]
        expected = expected[: min([*ends, text.limit])]
        said = generation.output
        kept = generation.context == [*text.prompt, *said]
        require(kept, f"{watched.where}: the drafter changed the text: work on a copy")
        _compare(said, expected if text.steps is None else expected[: len(said)], watched.where)

    def _step(self, batch: Batch, generation: Generation, steps: int | None) -> None:
        """Play `steps` rounds, or to the end if None."""
        while batch and steps != 0:
            batch.step()
            if generation.error is not None:
                raise generation.error
            steps = None if steps is None else steps - 1

    def _watched(self, where: str) -> WatchedDrafter:
        return WatchedDrafter(self.make(), self.vocab_size, where)

    def _plain(self, prompt: Sequence[int], temperature: float) -> list[int]:
        return self.reference.continued(prompt, self.length, self._sampler(temperature))

    def _sampler(self, temperature: float) -> Sampler:
        return Sampler(11, temperature)

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(count)]


def _compare(said: Sequence[int], expected: Sequence[int], where: str) -> None:
    """Raise AssertionError, naming the first difference, unless the texts are equal."""
    place = common_prefix(said, expected)
    here, plain = (
        str(tokens[place]) if place < len(tokens) else "its end" for tokens in (said, expected)
    )
    require(
        list(said) == list(expected),
        f"{where}: new token {place} is {here}, by plain decoding {plain}",
    )
