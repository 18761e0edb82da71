"""The trained parts of PPD, a few embeddings and what the extensions of chapter 4.4 add, and the
guesses from their rows; see `paceline.drafters.ppd` for where these are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.draw_noise import noise_of_draw
from paceline.drafters.host import Host
from paceline.drafters.trained_parts import TrainedParts
from paceline.errors import ModelError
from paceline.kernels.likeliest import likeliest
from paceline.planning.acceptance import AcceptanceTable, unmeasured
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY
from paceline.trained_configs import PromptConfig
from paceline.tree import ROOT

Floats = NDArray[np.floating[Any]]
Judge = Callable[[int, int | None, Sequence[float]], None]

_HEARD = 4
"""If tokens are drawn, this many times as many guesses are considered: noise makes some of the
unlikely ones likely."""


@dataclass(frozen=True, eq=False)
class PromptTokens(TrainedParts[PromptConfig]):
    """Trained prompt tokens of one model.

    tensors: "embeddings" [prompt_tokens, epts, hidden], in the form of the model's `inputs_embeds`,
    the output of its embedding module, including the factor by which some models (Gemma) scale it;
    and, if the configuration has them: "ept_weights" [prompt_tokens, epts], "prefix_keys" and
    "prefix_values" [layers, prompt_tokens, prefix_tokens, KV heads, head size], "head.weight" and
    "head.bias" ([hidden, hidden] and [hidden] of the residual block, or [vocabulary, hidden] of the
    whole head).
    """

    kind: ClassVar[str] = "prompt tokens"
    method: ClassVar[str] = "ppd"
    config_type: ClassVar[type] = PromptConfig

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        ensembles = self.config.prompt_tokens, self.config.epts
        weights = {"ept_weights": ensembles} if self.config.learned_weights else {}
        return {"embeddings": (*ensembles, self.base.hidden_size), **weights}

    def check_usable(self) -> None:
        """Raises ModelError unless only embeddings and weights of their logits are trained, each
        group of embeddings on its own: only these can be nodes of a tree."""
        config = self.config
        together = config.mask != "ensemble" and config.epts > 1
        if together or config.prefix_tokens or config.head != "shared" or config.exits > 1:
            raise ModelError(
                "these prompt tokens use extensions that exist only for the study: decode with "
                "prompt tokens trained without them"
            )


class PromptGuesses:
    """The guesses of one text.

    parts: prompt tokens trained for the host's model, which gets their embeddings. ranks: guesses
    for each distance.
    judge: called for each token once it is known, with its distance, the rank of the right guess,
    or None if none was right, and the shares of all.

    first: id of the first virtual token. tokens: the last round's guesses for each distance,
    likeliest first. shares: of the same in the softmax of their rows. length: tokens of the text.
    """

    def __init__(self, parts: PromptTokens, host: Host, ranks: int, judge: Judge) -> None:
        self._epts = parts.config.epts
        self._ranks, self._tell = ranks, judge
        self._weights = _weights(parts)
        embeddings = parts.tensors["embeddings"].flatten(0, 1)
        self.first = host.target.add_virtual_tokens(embeddings)
        self.tokens: list[list[int]] = []
        self.shares: list[list[float]] = []
        # Guesses whose token is yet to come: number of tokens before it, distance, tokens, shares.
        self._open: list[tuple[int, int, list[int], list[float]]] = []
        self._sampler = GREEDY
        self.length = 0

    def start(self, text: TextStart) -> None:
        """Begin a text, without guesses."""
        self.tokens, self.shares, self._open = [], [], []
        self._sampler, self.length = text.sampler or GREEDY, len(text.context)

    def observe(self, round: Round, read: bool = True) -> None:
        """Judge earlier guesses, and `read` the next ones after the last accepted node."""
        if self._open:
            self._judge(round.path.tokens)
        self.length += len(round.path.tokens)
        found = self._read(round) if read and len(round.tree) else []
        self.tokens, self.shares = [tokens for tokens, _ in found], [shares for _, shares in found]
        self._open += [(place, place + 1, *guesses) for place, guesses in enumerate(found)]

    def _judge(self, said: Sequence[int]) -> None:
        """Report guesses whose token is now known; distant ones wait for another round."""
        waiting = []
        for ahead, distance, tokens, shares in self._open:
            if ahead < len(said):
                right = said[ahead]
                rank = tokens.index(right) if right in tokens else None
                self._tell(distance, rank, shares)
            else:
                waiting.append((ahead - len(said), distance, tokens, shares))
        self._open = waiting

    def _read(self, round: Round) -> list[tuple[list[int], list[float]]]:
        """The likeliest tokens and their shares, by distance from the last accepted node."""
        last = round.path.nodes[-1] if round.path.nodes else ROOT
        end = self.first + self._weights.numel()
        chains = [
            round.tree.along(range(self.first + ept, end, self._epts), last)
            for ept in range(self._epts)
        ]
        return [
            self._likeliest(round.logits, [node + 1 for node in group], weights, ahead)
            for ahead, (group, weights) in enumerate(zip(zip(*chains), self._weights))
        ]

    def _likeliest(
        self, logits: torch.Tensor, rows: Sequence[int], weights: torch.Tensor, ahead: int
    ) -> tuple[list[int], list[float]]:
        """The likeliest tokens and their shares by the weighted sum of `rows`, for the token with
        `ahead` unknown ones before it."""
        if self._epts > 1:
            scores = weights.to(logits.device) @ logits[list(rows)].float()
        else:
            scores = logits[rows[0]]
        numbers, sampler = scores[None].float().cpu().numpy(), self._sampler
        if sampler.draws_likeliest:
            (places,), (shares,) = likeliest(numbers, self._ranks)
        else:
            (places,), (shares,) = likeliest(numbers, _HEARD * self._ranks)
            tokens, size = torch.from_numpy(places).to(logits.device), numbers.shape[1]
            position = self.length + ahead
            noise = noise_of_draw(sampler.seed, position, size, tokens, logits.device)
            order, shares = _as_drawn(shares, sampler.noise_scale * noise.cpu().numpy())
            places = places[order]
        return places[: self._ranks].tolist(), shares[: self._ranks].tolist()


def _as_drawn(shares: Floats, noise: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Guesses in the order in which the target draws them if its logits are the guesser's, and
    their shares in that order. noise: added to the logits whose softmax `shares` are."""
    with np.errstate(divide="ignore"):
        scores = np.log(shares) + noise
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    found = np.exp(scores - scores[0]) if np.isfinite(scores[0]) else np.zeros_like(scores)
    return order, found / max(1.0, found.sum())


def acceptance_of(parts: PromptTokens, vocab_size: int) -> AcceptanceTable:
    """The table that shapes the first trees: as measured with the parts, else a guess. Raises
    ModelError if it does not fit the parts or the vocabulary."""
    most = parts.config.prompt_tokens
    table = parts.acceptance or unmeasured(most, min(10, vocab_size))
    if table.distances != most or table.ranks > vocab_size:
        raise ModelError(
            f"the acceptance table of the prompt tokens has {table.distances} distances and "
            f"{table.ranks} ranks, but there are {most} prompt tokens and {vocab_size} tokens in "
            "the vocabulary: train them again"
        )
    return table


def _weights(parts: PromptTokens) -> torch.Tensor:
    """[prompt_tokens, epts]: weights of EPTs' logits (section 4.4.4), equal by default (4.2)."""
    if parts.config.learned_weights:
        return parts.tensors["ept_weights"].float()
    shape = (parts.config.prompt_tokens, parts.config.epts)
    return torch.full(shape, 1 / parts.config.epts, dtype=torch.float32, device="cpu")
