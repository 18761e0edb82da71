"""Texts to learn from and texts that are held back, in batches, and the places that are learned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from paceline.errors import UsageError
from paceline.training.dataset import share_of
from paceline.training.shard import Answer

__all__ = [
    "Assignment",
    "Example",
    "assignments",
    "batches",
    "choose_points",
    "examples",
    "fixed_assignments",
    "fixed_batches",
    "is_held_back",
    "split",
]


@dataclass(frozen=True)
class Assignment:
    """Texts that are read together, and the places of each that are learned from."""

    texts: Sequence[Sequence[int]]
    points: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Example:
    """One answer of the target behind its prompt.

    tokens: both, at most so many as fit.
    first: the first place that is learned from: the last token of the prompt.
    """

    id: str
    tokens: tuple[int, ...]
    first: int

    def room(self, distances: int) -> int:
        """How many places there are with distances + 1 tokens behind them."""
        return len(self.tokens) - self.first - distances - 1


def examples(
    answers: Iterable[Answer], longest: int, distances: int, fewest_points: int
) -> list[Example]:
    """The answers that are long enough; prompts lose their beginning where a text is longer than
    `longest`, answers their end where that does not do.

    distances: how far ahead is guessed, see `Example.room`. fewest_points: places that an answer
    must have room for.
    """
    found = []
    for answer in answers:
        # A prompt that is longer than half of it all keeps that half, a shorter one is kept whole.
        spoken = answer.tokens[: longest - min(len(answer.prompt), longest // 2)]
        prompt = answer.prompt[-(longest - len(spoken)) :]
        example = Example(answer.id, (*prompt, *spoken), len(prompt) - 1)
        if example.room(distances) >= fewest_points:
            found.append(example)
    return found


def split(found: Sequence[Example], held_back: float) -> tuple[list[Example], list[Example]]:
    """To learn from, and held back: a text belongs to the latter where the hash of its id says so,
    whatever else is there; turns of one conversation stay together.

    held_back: share of the latter, 0 to 1.

    Raises UsageError where one of them is empty.
    """
    learned: list[Example] = []
    kept: list[Example] = []
    for example in found:
        (kept if is_held_back(example.id, held_back) else learned).append(example)
    if not learned or not kept:
        raise UsageError(
            f"{len(found)} answers are long enough, of which {len(kept)} are held back: make more "
            "training data, or take a larger --held-back"
        )
    return learned, kept


def is_held_back(name: str, share: float) -> bool:
    """Whether the text with this id is among the `share` that nothing is learned from."""
    return share_of(name) < share


def batches(
    learned: Sequence[Example], size: int, seed: int
) -> Iterator[tuple[int, tuple[Example, ...]]]:
    """Batches of at most `size` texts without end, each with the number of its epoch, in which all
    texts come once; it depends on nothing but the arguments. Every epoch has another order."""
    for epoch in count():
        for group in _groups(learned, size, Random(f"{seed} {epoch}")):  # noqa: S311 - no secret
            yield epoch, group


def fixed_batches(texts: Sequence[Example], size: int) -> list[list[Example]]:
    """The same batches every time, of texts in order of their length."""
    ordered = sorted(texts, key=lambda one: (len(one.tokens), one.id))
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def assignments(
    learned: Sequence[Example], batch: int, most: int, distances: int, seed: int
) -> Iterator[Assignment]:
    """`batches` with places to learn from, which differ from epoch to epoch.

    batch: texts per step. most: places per text, see `choose_points`.
    """
    for epoch, group in batches(learned, batch, seed):
        points = choose_points(group, distances, most, f"{seed} {epoch}")
        yield Assignment([one.tokens for one in group], points)


def fixed_assignments(
    texts: Sequence[Example], batch: int, most: int, distances: int
) -> list[Assignment]:
    """`fixed_batches` with places that are the same every time."""
    return [
        Assignment(
            [one.tokens for one in group], choose_points(group, distances, most, "held back")
        )
        for group in fixed_batches(texts, batch)
    ]


def _groups(learned: Sequence[Example], size: int, random: Random) -> list[tuple[Example, ...]]:
    """All texts once, in random batches; texts of like length stand together, because a batch is
    padded to its longest."""
    order = list(learned)
    random.shuffle(order)
    # Sorted within stretches: alike in length, but not the same neighbours each time.
    stretches = [order[first : first + 16 * size] for first in range(0, len(order), 16 * size)]
    groups = [
        tuple(stretch[first : first + size])
        for stretch in (sorted(each, key=lambda one: len(one.tokens)) for each in stretches)
        for first in range(0, len(stretch), size)
    ]
    random.shuffle(groups)
    return groups


def choose_points(
    group: Sequence[Example], distances: int, most: int, mark: str
) -> list[list[int]]:
    """Random places in each text, ascending and all different, as many for each (PPD, 4.3.1).

    most: at most so many; fewer where the shortest answer has less room.
    mark: what the choice depends on, besides the texts.
    """
    number = min(most, *(example.room(distances) for example in group))
    return [
        sorted(
            Random(f"{mark} {example.id}").sample(  # noqa: S311 - the same for everyone
                range(example.first, example.first + example.room(distances)), number
            )
        )
        for example in group
    ]
