"""A draft model that generates in rounds of the loop, with a drafter of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.chains import ChainEnd
from paceline.drafters.draft_chain import Guess, Said, Speaker, guess_of
from paceline.kernels.likeliest import likeliest
from paceline.loop import Batch, Generation
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Planner, Target
from paceline.records import Round
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping


@dataclass(frozen=True)
class _Noted(Sampler):
    """A sampler that keeps the scores it has drawn from, which are expensive to make."""

    scores: list[torch.Tensor] = field(default_factory=list)

    def decide(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Sampler.decide`."""
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

    others: runners-up to keep per guess. clock: seconds.
    """

    def __init__(
        self,
        target: Target,
        inner: Drafter,
        planner: Planner,
        others: int,
        clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._others = others
        self._planner = planner
        self._batch = Batch(target, planner, clock)
        self._sampler = _Noted()
        self._text = Generation([0], inner, Stopping(1), GREEDY)
        self._key = -1  # in the batch
        self._corrected = False

    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """See `Speaker.start`."""
        self._sampler, self._corrected = _Noted(**sampler.arguments), False
        self._text = Generation(text, self._inner, Stopping(1), self._sampler, references)
        self._text.context = text

    def correct(self, kept: int) -> None:
        """See `Speaker.correct`."""
        self._corrected = True

    @property
    def unread(self) -> int:
        """See `Speaker.unread`."""
        return 0 if self._key in self._batch else len(self._text.context) - 1

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`."""
        passes = list[Said]()
        chances = list[float]()
        while len(chances) < min(room, most) and (said := self._pass(room - len(chances))):
            passes.append(said)
            chances += [guess.chance for guess in said.guesses]
            if end is not None and not end.goes_on(chances):
                break
        return passes

    def _pass(self, room: int) -> Said | None:
        """One pass; None if the text has ended."""
        text = self._text
        # Not just the tokens wanted: trees are cut to what is left, and with them the windows and
        # prompt tokens that guess for later passes.
        text.stopping = Stopping(room)
        if self._key not in self._batch:
            self._key = self._batch.add(text)
        elif self._corrected:
            self._batch.rewrite(self._key)
            if isinstance(self._planner, TreePlanner):  # the other kind remembers nothing
                self._planner.forget_trees(self._key)
        self._corrected = False
        while self._key in self._batch:
            for round in self._batch.step():
                seconds = round.seconds
                spent = seconds.draft + seconds.target + seconds.commit
                guesses = self._read(round, text.context)
                return Said(guesses, 1 + len(round.tree), spent, round.prefill)
        if text.error is not None:
            raise text.error
        return None

    def stop(self) -> None:
        """See `Speaker.stop`."""
        self._batch.close()

    def _read(self, round: Round, text: Sequence[int]) -> list[Guess]:
        """The guesses of a round, with their runners-up.

        Chances are the softmax of the scores whose largest was drawn, in the scale of the logits:
        logits + `noise_scale` x noise. At temperature 0 that is the model's own probability. With
        noise it says how far ahead of the others the token is, and so how much the target's logits
        may differ without drawing another one.
        """
        said, noted = round.path.tokens, self._sampler.scores
        if len(noted) != len(said):  # drawn in another way, as when logits alone decide
            noted.clear()
            begin = len(text) - len(said)
            for place, row in enumerate([0, *(node + 1 for node in round.path.nodes)]):
                self._sampler.decide(round.logits[row], text[: begin + place])
        scores = torch.stack(noted) if len(noted) > 1 else noted[0][None]
        noted.clear()
        numbers = scores.float().cpu().numpy()
        if not self._sampler.greedy:
            numbers = numbers * np.float32(self._sampler.noise_scale)
        # Only a few tokens: a softmax of all would take longer than the model's pass.
        places, shares = likeliest(numbers, 1 + self._others)
        ranked = [
            [*zip(*row, strict=True)] for row in zip(places.tolist(), shares.tolist(), strict=True)
        ]
        return [guess_of(token, best) for token, best in zip(said, ranked, strict=True)]
