"""The sampler: a value that turns a row of logits into one token, the same for every drafter.

Randomness is a function of (seed, position), never of how many draws came before: the token at
absolute position t is the argmax over the vocabulary of warped logits plus Gumbel noise keyed by
(seed, t), which is an exact draw from the warped distribution (the Gumbel-max trick). Plain
decoding and every drafter therefore draw the same token at the same position: losslessness at T > 0
is an equality (drafter-invariant speculation, arXiv 2408.07978), and a draft model that samples
with the same noise is coupled to its target. All this holds for a GPU's own noise, too.

Warping follows transformers' `generate` exactly; each step works on the output of the one before:

    logit biases (where transformers has `sequence_bias`), repetition penalty, presence and frequency
    penalties, processors, what a constraint allows, temperature, top-k, top-p, min-p

The steps up to the constraint also apply to greedy decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.noise import device_gumbel, gumbel, noise_at, noisy_argmax
from paceline.scores import TokenScores, check_drawn, checked, choices, likeliest
from paceline.warping import (
    add_biases,
    as_tensors,
    draws_there,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise,
    penalise_output,
)

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Input ids [1, length] and scores [1, vocabulary] -> scores [1, vocabulary], as in transformers.
One with the attribute `stateless = True` promises to depend on nothing else and to keep no
state."""


class _ForGuesses:
    """A stateless processor whose errors do not end a text: guesses may follow an end that a draft
    model does not know, or break a rule. Then scores are as it left them."""

    stateless = True

    def __init__(self, processor: LogitsProcessor) -> None:
        self._processor = processor
        self.temperature = getattr(processor, "temperature", 1.0)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        try:
            return self._processor(input_ids, scores)
        except Exception:
            return scores


Draw = Callable[[int, Sequence[int]], int]
"""Row of a scored tree, all tokens before the one to draw -> the token."""

_ROWS_AT_ONCE = 16
_HOTTEST = 1e30
"""A temperature beyond float32 would be infinite, and make NaN of the -inf of a forbidden token."""


@dataclass(frozen=True)
class Sampler:
    """How tokens are drawn. The default is greedy decoding.

    seed: any integer; two generations with the same seed and prompt are the same.
    temperature: 0 is greedy, and so is anything below 0.00001, where logits would overflow.
    top_k, top_p, min_p: None switches each off.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen so far.
    processors: transformers `LogitsProcessor`s or any callable like them. Each is called exactly
    once per position, in text order, so stateful ones work too.
    presence_penalty, frequency_penalty: in [-2, 2]; subtracted from the logits of tokens of the
    output so far, once and per occurrence.
    logit_bias: pairs of a token and what is added to its logit, in [-100, 100].
    prompt_tokens: length of the prompt; what follows is the output.

    Raises UsageError for values out of range.
    """

    seed: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        for name, fits, wanted in (
            ("temperature", 0 <= self.temperature <= _HOTTEST, "a number >= 0, at most 1e30"),
            ("top_k", self.top_k is None or self.top_k >= 1, ">= 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", penalty is None or penalty > 0, "> 0"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
        ):
            if not fits:
                raise UsageError(f"{name} must be {wanted}, got {getattr(self, name)}")
        for token, bias in self.logit_bias:
            if token < 0 or not -100 <= bias <= 100:
                wanted = "logit_bias must map token ids to biases in [-100, 100]"
                raise UsageError(f"{wanted}, got {bias} for {token}")

    def coupled(self) -> Sampler:
        """The sampler for a draft model: the same settings and the same noise at every position, so
        that two models that agree draw the same token.

        It keeps only `stateless` processors: a draft model draws more than once per position, and
        at positions that the text never reaches. Errors there end no text.
        """
        stateless = (each for each in self.processors if getattr(each, "stateless", False))
        return Sampler(**{**self.arguments, "processors": tuple(map(_ForGuesses, stateless))})

    @property
    def arguments(self) -> dict[str, Any]:
        """What makes an equal sampler, without what this one has worked out."""
        return {field.name: getattr(self, field.name) for field in fields(Sampler)}

    def over(self, logits: torch.Tensor, positions: Sequence[int] | None = None) -> Draw:
        """Prepare draws from the rows of one scored tree, logits [rows, vocabulary].

        positions: position of the token that each row draws, the length of its context.

        If nothing changes the logits, one device synchronisation serves all rows. Sampling needs a
        GPU and positions for that; on a CPU it is faster to draw only what is asked for.
        """
        if not self._changes_scores:
            if self.greedy:
                choose = choices(logits)
                return lambda row, context: choose(row)
            if positions is not None and draws_there(logits.device):
                choose = checked(*self.draw_together(logits, positions))
                return lambda row, context: choose(row)
        return lambda row, context: self.draw(logits[row], context)

    def draw(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None = None
    ) -> int:
        """Draw the token that follows `context` from one row of raw logits [vocabulary].

        allowed: bool [vocabulary], which tokens may be drawn; None for all.

        Raises ModelError for scores that are NaN, UsageError if all are -inf.
        """
        if self.greedy or draws_there(row.device):
            scores = self.decide(row, context, allowed)
            token = likeliest(scores[None])[0]
        else:
            scores = self._warped(row, context, allowed)
            token = noisy_argmax(scores.numpy(), self.seed, len(context))
        check_drawn(float(scores[token]))
        return token

    def draw_together(
        self, logits: torch.Tensor, positions: Sequence[int]
    ) -> tuple[list[float], list[int]]:
        """Draw from all rows of logits [rows, vocabulary], at these positions, on their own device
        and with its noise: the scores and tokens. Not for samplers that depend on the context."""
        size, device = logits.shape[1], logits.device
        noise = {each: device_gumbel(self.seed, each, size, device) for each in set(positions)}
        scores, tokens = list[float](), list[int]()
        # In parts, because a wide tree's rows take gigabytes in double precision.
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            own = torch.stack([noise[position] for position in positions[part]])
            found = (self.warp(logits[part].float()).double() + own).max(dim=-1)
            scores += found.values.tolist()
            tokens += found.indices.tolist()
        return scores, tokens

    def decide(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The scores [vocabulary] whose largest is drawn: processed and, unless greedy, warped and
        with this position's noise. allowed: see `draw`."""
        scores = self._warped(row, context, allowed)
        if self.greedy:
            return scores
        if draws_there(scores.device):
            noise = device_gumbel(self.seed, len(context), scores.numel(), scores.device)
        else:
            noise = torch.from_numpy(gumbel(self.seed, len(context), scores.numel()))
        return scores.double() + noise

    def decide_among(
        self, scores: TokenScores, context: Sequence[int], vocabulary: int
    ) -> TokenScores:
        """Like `decide` on a CPU, for some tokens of a vocabulary of this size."""
        tokens = slice(len(scores.numbers)) if scores.tokens is None else scores.tokens
        if self._changes_scores:
            row = np.full(vocabulary, -np.inf, dtype=np.float32)
            row[tokens] = scores.numbers
            return TokenScores(self.decide(torch.from_numpy(row), context).numpy())
        if self.greedy:
            return scores
        # In float32, as a row of logits would be.
        warped = self.warp(torch.from_numpy(scores.numbers)).double().numpy()
        noise = noise_at(self.seed, len(context), vocabulary, tokens)
        return TokenScores(warped + noise, scores.tokens)

    def process(self, row: torch.Tensor, context: Sequence[int]) -> torch.Tensor:
        """Apply biases, penalties and processors, greedy or not: [vocabulary] fp32, or fp64 if a
        processor makes it that."""
        if not self._changes_scores:
            return row.float()
        # A copy: processors may write in place, and drafters learn from the raw row.
        scores = row.to(torch.float32, copy=True)[None]
        if self.logit_bias:
            scores = add_biases(scores, *self._biases)
        if self.repetition_penalty is not None or self.processors:
            input_ids = torch.tensor([list(context)], dtype=torch.long, device=row.device)
        if self.repetition_penalty is not None:
            scores = penalise(scores, input_ids, self.repetition_penalty)
        if self.presence_penalty or self.frequency_penalty:
            output = context[self.prompt_tokens :]
            scores = penalise_output(scores, output, self.presence_penalty, self.frequency_penalty)
        with torch.no_grad():  # as in transformers: a processor may ask a network
            for processor in self.processors:
                scores = processor(input_ids, scores)
        return scores[0] if scores.dtype == torch.float64 else scores[0].float()

    def _warped(
        self, row: torch.Tensor, context: Sequence[int], allowed: torch.Tensor | None
    ) -> torch.Tensor:
        """The scores [vocabulary] before noise, on the CPU if the noise is made there."""
        scores = self.process(row, context)
        if allowed is not None:
            scores = torch.where(allowed.to(scores.device), scores, -math.inf)
        if self.greedy:
            return scores
        scores = self.warp(scores)
        return scores if draws_there(scores.device) else scores.cpu()

    def warp(self, scores: torch.Tensor) -> torch.Tensor:
        """Apply temperature, top-k, top-p and min-p to processed scores [..., vocabulary]."""
        scores = scores / self.temperature
        if self.top_k is not None:
            scores = keep_top_k(scores, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            scores = keep_top_p(scores, self.top_p)
        if self.min_p is not None:
            scores = keep_min_p(scores, self.min_p)
        return scores

    @property
    def greedy(self) -> bool:
        """Whether the highest score wins, without noise."""
        return self.temperature < 1e-5

    @property
    def noise_scale(self) -> float:
        """What noise is multiplied by in the scale of raw logits: the temperature, and those that
        processors divide by, as in transformers."""
        given = (getattr(each, "temperature", 1.0) for each in self.processors)
        return self.temperature * math.prod(one for one in given if isinstance(one, int | float))

    @property
    def draws_likeliest(self) -> bool:
        """Whether noise cannot change what is drawn."""
        return self.greedy or self.top_k == 1

    @property
    def takes_likeliest(self) -> bool:
        """Whether the token with the largest raw logit is drawn, whatever the text."""
        return self.greedy and not self._changes_scores

    @cached_property
    def _biases(self) -> tuple[torch.Tensor, torch.Tensor]:
        return as_tensors(self.logit_bias)

    @property
    def _changes_scores(self) -> bool:
        penalties = self.presence_penalty or self.frequency_penalty
        changed = self.repetition_penalty is not None or penalties or self.logit_bias
        return bool(changed or self.processors)


GREEDY = Sampler()
