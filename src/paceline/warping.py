"""Biases, penalties and filters, as in transformers or, if that has none, in OpenAI's API."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch


def as_tensors(biases: Iterable[tuple[int, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of a token and a bias as tokens and biases, [n] each."""
    pairs = list(biases)
    tokens = torch.tensor([token for token, _ in pairs], dtype=torch.long, device="cpu")
    values = torch.tensor([bias for _, bias in pairs], dtype=torch.float32, device="cpu")
    return tokens, values


def add_biases(scores: torch.Tensor, tokens: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Add the biases [n] of tokens [n] to scores [1, vocabulary]. Ids beyond the vocabulary are left
    out, since a draft model may know fewer."""
    known = tokens < scores.shape[1]
    return scores.index_add(1, tokens[known].to(scores.device), biases[known].to(scores)[None])


def penalise(scores: torch.Tensor, input_ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """Repetition penalty (Keskar et al. 2019, section 4.1): scores [1, vocabulary]."""
    seen = scores.gather(1, input_ids)
    return scores.scatter(1, input_ids, torch.where(seen < 0, seen * penalty, seen / penalty))


def penalise_output(
    scores: torch.Tensor, output: Sequence[int], presence: float, frequency: float
) -> torch.Tensor:
    """Presence and frequency penalties of OpenAI's API: scores [1, vocabulary], less `presence` for
    each token of the output so far and `frequency` for each of its occurrences."""
    less = ((token, -(presence + frequency * times)) for token, times in Counter(output).items())
    return add_biases(scores, *as_tensors(less))


def keep_top_k(scores: torch.Tensor, count: int) -> torch.Tensor:
    """-inf for everything below the `count`-th best of scores [..., vocabulary]; ties stay."""
    threshold = scores.topk(min(count, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < threshold, -math.inf)


def keep_top_p(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """-inf outside the smallest set of best tokens [..., vocabulary] with probability `mass`."""
    ascending, order = scores.sort()
    # A GPU sums in another order when there are more rows; double precision hides that.
    precision = torch.float64 if draws_there(scores.device) else scores.dtype
    drop = ascending.softmax(-1).cumsum(-1, dtype=precision) <= 1 - mass
    drop[..., -1] = False
    return scores.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -math.inf)


def keep_min_p(scores: torch.Tensor, share: float) -> torch.Tensor:
    """-inf for tokens [..., vocabulary] less likely than `share` of the likeliest (arXiv
    2407.01082)."""
    probabilities = scores.softmax(-1)
    likeliest = probabilities.amax(dim=-1, keepdim=True)
    return scores.masked_fill(probabilities < share * likeliest, -math.inf)


def draws_there(device: torch.device) -> bool:
    """Whether tokens are sampled on `device` itself; else on the CPU."""
    return device.type == "cuda"
