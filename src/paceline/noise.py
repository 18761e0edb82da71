"""Gumbel noise that depends only on seed and position, and draws that need little of it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import exp
from operator import index

import numpy as np
import torch

_KEPT = 48
"""Positions, half a megabyte or more each: drafters of several texts need the noise of a token some
rounds before their target draws it."""
_LEAST_NOISE = 1 << 18  # more than most vocabularies
_BITS = 52
_NEAR = 5.0
_MARGIN = 1e-6
"""Covers the rounding of noise, which is at most 37."""
_MOST_NEEDED = 30.0


def gumbel(seed: int, position: int, size: int) -> np.ndarray:
    """Standard Gumbel noise [size] float64 that depends only on (seed, position).

    The counter-based Philox generator gives every position its own stream, so a token's noise does
    not depend on earlier draws, the device or the vocabulary size.
    """
    return _noise_of(_bits(seed, position, size))


def device_gumbel(seed: int, position: int, size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise [size] float64 made on `device`; copying that of `gumbel` there would
    take longer than a pass. It too depends only on (seed, position), but differs between kinds of
    device, and perhaps between versions of torch."""
    key = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(key, "little"))
    # A GPU's numbers depend on how many are asked for. This makes models whose vocabularies differ
    # a little in size, as a draft model's and its target's may, ask for the same count.
    count = max(_LEAST_NOISE, 1 << (size - 1).bit_length())
    noise = torch.empty(count, dtype=torch.float64, device=device)
    return noise.exponential_(generator=generator).log_().neg_()[:size]


def noise_at(seed: int, position: int, size: int, tokens: np.ndarray | slice) -> np.ndarray:
    """The noise of `gumbel` for some tokens only."""
    return _noise_of(_bits(seed, position, size)[tokens])


def noisy_argmax(scores: np.ndarray, seed: int, position: int) -> int:
    """The first argmax of scores [size] float32 or float64 plus `gumbel`, added in float64.

    Most noise is never computed: a token far below the best score needs noise that few have, and
    its random bits show whether it does.
    """
    bits, top = _bits(seed, position, len(scores)), scores.max()
    if not np.isfinite(top):
        return int((scores + _noise_of(bits)).argmax())
    border = top - scores.dtype.type(_NEAR)  # in their own precision: at most `top`
    near = scores >= border
    known = near.nonzero()[0]
    best = (scores[known] + _noise_of(bits[known])).max()
    needed = min(float(best) - float(border) - _MARGIN, _MOST_NEEDED)
    able = bits >= int(exp(-exp(-needed)) * 2.0**_BITS)
    places = (near | able).nonzero()[0]
    return int(places[(scores[places] + _noise_of(bits[places])).argmax()])


def _noise_of(bits: np.ndarray) -> np.ndarray:
    # Cell centres: never 0 or 1, so both logarithms are finite.
    uniform = (bits + 0.5) * 2.0**-_BITS
    noise: np.ndarray = -np.log(-np.log(uniform))
    return noise


@lru_cache(_KEPT)
def _bits(seed: int, position: int, size: int) -> np.ndarray:
    """52 random bits for each token [size] uint64. Shared: do not write to it."""
    # Numbers of Python: numpy's integers would overflow.
    generator = np.random.Philox(key=index(seed) % 2**128, counter=index(position) << 64)
    bits: np.ndarray = generator.random_raw(size)
    bits >>= np.uint64(64 - _BITS)
    return bits
