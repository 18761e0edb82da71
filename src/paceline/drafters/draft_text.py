"""A draft model's own text: the one loop on a smaller target, a little ahead of what is certain.

The text is a `Generation` like any other, with a drafter of its own, which makes a draft model out
of any target and a faster one out of any drafter. What it has said beyond the committed tokens are
the guesses. Where the target says something else, the text is corrected from there, and the draft
model's target keeps what is still right in its cache: a rejection is nothing special.

    committed: a b c        guesses: d e f
    committed: a b c d x    guesses: none; "e f" is taken back, and the next pass reads "x"
    committed: a b c d      guesses: e f; nothing is taken back (the target was not asked about f)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from paceline.drafters.draft_target import in_vocabulary
from paceline.drafters.host import Host
from paceline.drafters.plain import Plain
from paceline.loop import Batch, FixedBudget, Generation
from paceline.planning.planner import TreePlanner
from paceline.prefix import common_prefix
from paceline.protocols import Drafter, Planner, check_capabilities
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.scores import log_totals
from paceline.stopping import Stopping

__all__ = ["DraftText", "Guess"]


@dataclass(frozen=True)
class Guess:
    """A token that the draft model has drawn.

    chance: that the target draws it too, by the draft model's own word.
    others: the next best tokens there under the same noise, each with its chance, best first.
    """

    token: int
    chance: float
    others: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class _Noted(Sampler):
    """A sampler that keeps the scores it has drawn from, which take a while to make."""

    scores: list[torch.Tensor] = field(default_factory=list)

    def decide(self, row: torch.Tensor, context: Sequence[int]) -> torch.Tensor:
        """See `Sampler.decide`."""
        self.scores.append(super().decide(row, context))
        return self.scores[-1]


class DraftText:
    """What a draft model would go on with, for one text at a time.

    host: the draft model. inner: its own drafter.
    vocab_size: of the model that it drafts for.
    others: runners-up to keep per guess.
    budget: nodes of the inner drafter's trees at most; 0 for as many as pay.

    Texts of one host and kind of inner drafter share a planner.

    Where the model cannot follow, because the text is longer than its context or holds a token that
    it does not have, it says nothing.

    Raises UsageError where `inner` needs what the draft model's target lacks.
    """

    def __init__(
        self, host: Host, inner: Drafter, vocab_size: int, others: int, budget: int = 0
    ) -> None:
        check_capabilities(inner, host.target)
        known = host.target.vocab_size if host.tokens is None else host.tokens
        self.guesses: list[Guess] = []
        self._target = in_vocabulary(host.target, vocab_size, known)
        self._inner = inner
        self._others = others
        fixed = budget or isinstance(inner, Plain)
        planner: Planner = FixedBudget(budget) if fixed else _planner(host, inner)
        self._batch = Batch(self._target, planner, host.clock)
        self._sampler = _Noted()
        self._text: Generation | None = None
        self._key = -1  # in the batch
        self._committed = 0
        self._corrected = False

    def start(self, text: TextStart) -> None:
        """Begin with these committed tokens. The sampler is the target's."""
        self.stop()
        # What the model cannot read is no guess for it either.
        references = [reference for reference in text.references if self._can_read(reference)]
        self._sampler = _Noted(**vars((text.sampler or GREEDY).coupled()))
        self._committed, self._corrected = len(text.context), False
        if self._can_read(text.context) and self._room(len(text.context)) > 0:
            self._text = Generation(
                text.context, self._inner, Stopping(1), self._sampler, references
            )

    def stop(self) -> None:
        """Let go of the text."""
        self.guesses, self._text = [], None
        self._batch.close()

    def resume(self, text: TextStart) -> None:
        """Go on with this committed text, whatever was committed before."""
        if self._text is None:
            self.start(text)
            return
        same = common_prefix(self._text.context, text.context)
        if same < len(text.context) or same < self._committed:
            self._correct(same, text.context[same:])
        else:
            del self.guesses[: same - self._committed]
        self._committed = len(text.context)

    def hear(self, tokens: Sequence[int]) -> None:
        """These tokens were committed behind the earlier ones."""
        right = common_prefix([guess.token for guess in self.guesses], tokens)
        if right < len(tokens):
            self._correct(self._committed + right, tokens[right:])
        else:
            del self.guesses[:right]
        self._committed += len(tokens)

    def guess(self, most: int) -> Iterator[Round]:
        """Say more until there are `most` guesses, one pass per step, which may bring several.

        The caller may stop between any two passes.
        """
        text = self._text
        room = 0 if text is None else self._room(len(text.context))
        if text is None or room < 1 or len(self.guesses) >= most:
            return
        self._join(text)
        # Not as many as are wanted: trees are cut to what is left, and with them windows and prompt
        # tokens that make the guesses of later passes.
        text.stopping = Stopping(room)
        while len(self.guesses) < most and self._key in self._batch:
            for round in self._batch.step():
                self.guesses += self._read(round, text.context)
                yield round
        if text.error is not None:
            raise text.error

    def _join(self, text: Generation) -> None:
        """The text is in the batch, as it is now."""
        if self._key not in self._batch:
            self._key = self._batch.add(text)
        elif self._corrected:
            self._batch.rewrite(self._key)
        self._corrected = False

    def _correct(self, kept: int, tokens: Sequence[int]) -> None:
        """The text's first `kept` tokens stay, then come these; nothing is guessed behind them."""
        self.guesses = []
        if self._text is None:
            return
        del self._text.context[kept:]
        self._text.context.extend(tokens)
        self._corrected = True
        if not self._can_read(tokens):
            self._text = None

    def _can_read(self, tokens: Sequence[int]) -> bool:
        return max(tokens, default=0) < self._target.vocab_size

    def _room(self, length: int) -> int:
        """Tokens that fit behind a text, the last of which the model need not read."""
        longest = self._target.max_context
        return sys.maxsize if longest is None else longest - length

    def _read(self, round: Round, text: Sequence[int]) -> list[Guess]:
        """What was said in a round, with the runners-up.

        Chances are the softmax of the scores whose largest was drawn, in the scale of the logits:
        logits + temperature x noise. At temperature 0 that is what the model gives each token. With
        noise in it, it says how far ahead of the others the token is, and that is how much the
        target may see otherwise without drawing another one.
        """
        said, noted = round.path.tokens, self._sampler.scores
        if len(noted) != len(said):  # drawn in another way, as where nothing but logits decides
            noted.clear()
            begin = len(text) - len(said)
            for place, row in enumerate([0, *(node + 1 for node in round.path.nodes)]):
                self._sampler.decide(round.logits[row], text[: begin + place])
        scores = torch.stack(noted) if len(noted) > 1 else noted[0][None]
        noted.clear()
        if not self._sampler.greedy:
            scores = scores * self._sampler.temperature
        # Chances of a few tokens only: a softmax of all would take longer than the model's pass.
        total = log_totals(scores)
        best = scores.topk(min(1 + self._others, scores.shape[1]))
        ranks = (best.values - total).exp().nan_to_num().tolist()
        index = torch.tensor(said, device=scores.device)[:, None]
        own = (scores.gather(1, index) - total).exp().nan_to_num()[:, 0].tolist()
        guesses = []
        for token, chance, *best_here in zip(said, own, best.indices.tolist(), ranks):
            ranked: Iterator[tuple[int, float]] = zip(*best_here)
            others = [(other, share) for other, share in ranked if other != token and share > 0]
            guesses.append(Guess(token, chance, tuple(others[: self._others])))
        return guesses


def _planner(host: Host, inner: Drafter) -> TreePlanner:
    planner: TreePlanner = host.learn((TreePlanner, type(inner)), lambda: TreePlanner(host.curve))
    return planner
