"""What a draft model learns from in a step: some places of some texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random

import torch

from paceline.training.course import Course
from paceline.training.draft.recipe import DraftRecipe
from paceline.training.draft.teacher import Reading, Teacher
from paceline.training.examples import Example, batches, fixed_batches

__all__ = ["DraftLessons", "Lesson", "lesson_of"]

# Of the held-back texts, for the loss on the way.
_JUDGED_TEXTS = 32


@dataclass(frozen=True)
class Lesson:
    """Texts that are read together, and what the target says at some places.

    ids: [batch, length] int64, the shorter texts padded behind their end.
    keep: [places] int64, ascending, the same in all texts.
    tokens, log_chances, log_kept, greedy: as in `Reading`, [batch, places, …].
    weights: [batch, places] float32, what each place counts; 0 where a text has none.
    """

    ids: torch.Tensor
    keep: torch.Tensor
    tokens: torch.Tensor
    log_chances: torch.Tensor
    log_kept: torch.Tensor
    greedy: torch.Tensor
    weights: torch.Tensor


class DraftLessons:
    """The texts of a course, with what the teacher says about them; see `Lessons`.

    read: texts without answers, which are learned from in every other step.
    """

    def __init__(
        self, teacher: Teacher, course: Course, recipe: DraftRecipe, read: Sequence[Example] = ()
    ) -> None:
        self.teacher = teacher
        self.course = course
        self.recipe = recipe
        self.read = read

    def learned(self, first: int) -> Iterator[Lesson]:
        """Lessons from step `first` on; every epoch looks at other places."""
        recipe = self.recipe
        kinds = [self.course.learned, *([self.read] if self.read else [])]
        # In turns, so that answers come as often as they would without the other texts.
        steps = chain.from_iterable(
            zip(*(batches(texts, recipe.batch, recipe.seed) for texts in kinds))
        )
        for epoch, texts in islice(steps, first, None):
            mark = f"{recipe.seed} {epoch} {texts[0].id}"
            yield lesson_of(texts, self.teacher, recipe.points, recipe.prompt_weight, mark)

    def judged(self) -> Iterator[tuple[Lesson, int]]:
        """All places of answers in held-back texts."""
        for texts in fixed_batches(self.course.judged[:_JUDGED_TEXTS], self.recipe.batch):
            lesson = lesson_of(texts, self.teacher)
            yield lesson, self.places(lesson)

    def places(self, lesson: Lesson) -> int:
        """Those that count."""
        return int(lesson.weights.count_nonzero())


def lesson_of(
    texts: Sequence[Example],
    teacher: Teacher,
    most: int | None = None,
    prompt_weight: float = 0.0,
    mark: str = "",
) -> Lesson:
    """A lesson on these texts.

    most: places, chosen at random by `mark`; None for all.
    prompt_weight: what places before the answer count.
    """
    counts = [_weights(text, prompt_weight) for text in texts]
    longest = max(map(len, counts))
    places = [
        place for place in range(longest) if any(any(each[place : place + 1]) for each in counts)
    ]
    if most is not None and len(places) > most:
        places = sorted(Random(mark).sample(places, most))  # noqa: S311 - no secret
    readings = [(teacher.first(text), teacher.read(text)) for text in texts]

    def gather(part: Callable[[Reading], torch.Tensor]) -> torch.Tensor:
        rows = [_rows(part(reading), first, places) for first, reading in readings]
        return torch.stack(rows).to(teacher.device)

    ids = [[*text.tokens, *[0] * (longest + 1 - len(text.tokens))] for text in texts]
    weights = [[each[place] if place < len(each) else 0.0 for place in places] for each in counts]
    return Lesson(
        ids=torch.tensor(ids, device=teacher.device),
        keep=torch.tensor(places, device=teacher.device),
        tokens=gather(lambda reading: reading.tokens).long(),
        log_chances=gather(lambda reading: reading.log_chances),
        log_kept=gather(lambda reading: reading.log_kept),
        greedy=gather(lambda reading: reading.greedy).long(),
        weights=torch.tensor(weights, device=teacher.device),
    )


def _weights(text: Example, prompt_weight: float) -> list[float]:
    """What each place counts; the last token of a text has nothing behind it."""
    answers = len(text.tokens) - 1 - text.first
    return [prompt_weight] * text.first + [1.0] * answers


def _rows(read: torch.Tensor, first: int, places: Iterable[int]) -> torch.Tensor:
    """The rows at these places, any row where there is none: it counts nothing."""
    index = torch.tensor([min(max(place - first, 0), len(read) - 1) for place in places])
    return read[index]
