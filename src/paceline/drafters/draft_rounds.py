"""A draft model that generates in rounds of the loop, with a drafter of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.drafters.draft_chain import Guess, Said, Speaker, guess_of
from paceline.errors import ModelError
from paceline.loop import Batch, Generation
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Planner, Target
from paceline.records import Round
from paceline.sampling import GREEDY, Sampler
from paceline.scores import NothingAllowedError
from paceline.stopping import Stopping


@dataclass(frozen=True)
class _Noted(Sampler):
    """A sampler that keeps the scores it has drawn from, which are expensive to make."""

    scores: list[torch.Tensor] = field(default_factory=list)

    def decide(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.scores.append(super().decide(row, context, allowed))
        return self.scores[-1]

    def draw(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None = None
    ) -> int:
        """See `Sampler.draw`, which would not make all scores."""
        return int(self.decide(row, context, allowed).argmax())


class DraftRounds(Speaker):
    """Generates what plain decoding of the draft model would, several tokens per pass if its own
    drafter has guessed them.

    inner: that drafter. planner: of its trees. others, clock: see `Speaker`.
    """

    def __init__(
        self,
        target: Target,
        inner: Drafter,
        planner: Planner,
        others: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(target, others, clock)
        self._inner = inner
        self._planner = planner
        self._batch = Batch(target, planner, clock)
        self._noted = _Noted()
        self._generation = Generation([0], inner, Stopping(1), GREEDY)
        self._key = -1  # in the batch

    def _pass(self, room: int) -> Said | None:
        """See `Speaker`: a round."""
        # Not just the tokens wanted: trees are cut to what is left, and with them the windows and
        # prompt tokens that guess for later passes.
        stopping = Stopping(room)
        if self._key not in self._batch:
            self._noted = _Noted(**self._sampler.arguments)
            references, record = self._started.references, self._started.record
            self._generation = Generation(
                self._text, self._inner, stopping, self._noted, references, record=record
            )
            self._generation.context = self._text
            self._key = self._batch.add(self._generation)
        else:
            self._generation.stopping = stopping
            if self._known < len(self._text):
                self._batch.rewrite(self._key)
                if isinstance(self._planner, TreePlanner):  # the other kind remembers nothing
                    self._planner.forget_trees(self._key)
        while self._key in self._batch:
            for round in self._batch.step():
                self._known = len(self._text)
                seconds = round.seconds
                spent = seconds.draft + seconds.target + seconds.commit
                return Said(self._read(round), 1 + len(round.tree), spent, round.prefill)
        error = self._generation.error
        # Scores that are NaN or -inf are no guesses; the text that they are for goes on without.
        if error is not None and not isinstance(error, ModelError | NothingAllowedError):
            raise error
        return None

    def stop(self) -> None:
        self._batch.close()

    def _read(self, round: Round) -> list[Guess]:
        """The guesses of a round, with their runners-up."""
        said, noted = round.path.tokens, self._noted.scores
        if len(noted) != len(said):  # drawn in another way, as when logits alone decide
            noted.clear()
            begin = len(self._text) - len(said)
            for place, row in enumerate([0, *(node + 1 for node in round.path.nodes)]):
                self._noted.decide(round.logits[row], self._text[: begin + place])
        scores = torch.stack(noted) if len(noted) > 1 else noted[0][None]
        noted.clear()
        ranked = self._ranked(scores.float().cpu().numpy())
        return [guess_of(token, best) for token, best in zip(said, ranked, strict=True)]
