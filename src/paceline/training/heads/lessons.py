"""What heads learn from in a step: the states of some texts, and what follows at some places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch

from paceline.training.course import Course
from paceline.training.examples import Assignment, Example, assignments, fixed_assignments
from paceline.training.heads.reader import StateReader
from paceline.training.heads.recipe import HeadRecipe
from paceline.training.losses import NO_LABEL

__all__ = ["HeadLesson", "HeadLessons"]

# Of the held-back texts, for the loss on the way.
_JUDGED_TEXTS, _JUDGED_POINTS = 32, 16
_ROWS = 512  # that go through a whole output head at a time


@dataclass(frozen=True)
class HeadLesson:
    """A batch of texts, read by the frozen model.

    tokens: [batch, length] int64, the shorter texts padded behind their end.
    states: [batch, length, hidden] float32, the model's last.
    points: [batch, n] int64: places of the last token that the model has read; the one behind it is
    known, and head i guesses the token i + 2 places behind the point.
    labels: [batch, n, heads] int64, these tokens as columns of logits, or `NO_LABEL`.
    scores: [batch, n, heads, columns], the model's logits for them; None where labels are learned.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    points: torch.Tensor
    labels: torch.Tensor
    scores: torch.Tensor | None

    def states_ahead(self, heads: int) -> torch.Tensor:
        """[batch, n, heads, hidden]: the model's states 1 to `heads` places behind each point."""
        places = self.points[..., None] + 1 + torch.arange(heads, device=self.points.device)
        batch = torch.arange(len(self.states), device=self.points.device)[:, None, None]
        return self.states[batch, places]

    def parts(self, most: int) -> Iterator[HeadLesson]:
        """The same texts with at most so many of their places at a time."""
        for first in range(0, self.points.shape[1], most):
            some = slice(first, first + most)
            yield replace(
                self,
                points=self.points[:, some],
                labels=self.labels[:, some],
                scores=None if self.scores is None else self.scores[:, some],
            )


class HeadLessons:
    """The texts of a course as lessons; see `Lessons`.

    heads: how many learn.
    token_ids: [columns] int64, the tokens that may be guessed; None for all.
    read: texts without answers, which are learned from in every other step.
    """

    def __init__(
        self,
        reader: StateReader,
        course: Course,
        heads: int,
        recipe: HeadRecipe,
        token_ids: torch.Tensor | None,
        read: Sequence[Example] = (),
    ) -> None:
        self.read = read
        self.course = course
        self._reader = reader
        self._heads = heads
        self._recipe = recipe
        self._token_ids = None if token_ids is None else token_ids.to(reader.device)

    def learned(self, first: int) -> Iterator[HeadLesson]:
        """Lessons from step `first` on; every epoch looks at other places."""
        kinds = [self._assigned(self.course.learned, self._recipe.prompts)]
        if self.read:
            kinds.append(self._assigned(self.read, True))
        # In turns, so that answers come as often as they would without the other texts.
        steps = chain.from_iterable(zip(*kinds))
        for assignment, prompts in islice(steps, first, None):
            yield self._lesson(assignment, self._recipe.loss == "distillation", prompts)

    def _assigned(
        self, texts: Sequence[Example], prompts: bool
    ) -> Iterator[tuple[Assignment, bool]]:
        """What to read, step by step. prompts: places in prompts are learned from, too."""
        recipe = self._recipe
        if prompts:
            texts = [replace(text, first=0) for text in texts]
        steps = assignments(texts, recipe.batch, recipe.points, self._heads, recipe.seed)
        return ((assignment, prompts) for assignment in steps)

    def judged(self) -> Iterator[tuple[HeadLesson, int]]:
        """Lessons on held-back answers."""
        recipe, texts = self._recipe, self.course.judged[:_JUDGED_TEXTS]
        for assignment in fixed_assignments(texts, recipe.batch, _JUDGED_POINTS, self._heads):
            lesson = self._lesson(assignment, recipe.loss == "distillation", False)
            yield lesson, lesson.points.numel()

    def whole(self, texts: Sequence[Example]) -> Iterator[HeadLesson]:
        """Text by text with every place of its answer, without the model's logits."""
        for text in texts:
            places = range(text.first, text.first + text.room(self._heads))
            yield self._lesson(Assignment([text.tokens], [places]), False, False)

    @torch.no_grad()
    def _lesson(self, assignment: Assignment, scored: bool, teacher_says: bool) -> HeadLesson:
        """teacher_says: labels are what the model would say, not what the text says."""
        device = self._reader.device
        texts = [torch.tensor(list(text)) for text in assignment.texts]
        tokens = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)
        points = torch.tensor([list(each) for each in assignment.points], device=device)
        places = points[..., None] + 2 + torch.arange(self._heads, device=device)
        said = tokens.gather(1, places.flatten(1)).view_as(places)
        states = self._reader.batch(assignment.texts)
        lesson = HeadLesson(tokens, states, points, self._columns(said), None)
        if not (scored or teacher_says):
            return lesson
        ahead = lesson.states_ahead(self._heads).flatten(0, -2)
        if scored:
            scores = self._reader.scores(ahead, self._token_ids)
            return replace(lesson, scores=scores.view(*said.shape, -1))
        best = [self._reader.scores(part).argmax(dim=-1) for part in torch.split(ahead, _ROWS)]
        return replace(lesson, labels=self._columns(torch.cat(best).view_as(said)))

    def _columns(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens as columns of logits."""
        if self._token_ids is None:
            return tokens
        found = torch.searchsorted(self._token_ids, tokens).clamp(max=len(self._token_ids) - 1)
        return found.masked_fill(self._token_ids[found] != tokens, NO_LABEL)
