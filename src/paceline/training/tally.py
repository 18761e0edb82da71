"""How often guesses are right, by text, so that figures have intervals: places of one text are
alike, and two runs of a test differ in their texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.planning.acceptance import AcceptanceTable

RANKS = 10
_RESAMPLES = 1000

Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Tally:
    """Counts by text of a split and head, [texts, heads].

    points: guesses. hits: [texts, heads, RANKS], those right at each rank. accepted: sums of
    acceptance. chains: points where the likeliest guesses of a head and all before it were right.
    silent: points whose target token cannot be guessed: counted as misses.
    """

    def __init__(self, texts: int, heads: int) -> None:
        self.points = np.zeros((texts, heads))
        self.accepted = np.zeros((texts, heads))
        self.chains = np.zeros((texts, heads))
        self.silent = np.zeros((texts, heads))
        self.hits = np.zeros((texts, heads, RANKS))

    def add(
        self,
        head: int,
        source: torch.Tensor,
        rank: torch.Tensor,
        acceptance: torch.Tensor,
        chained: torch.Tensor,
    ) -> None:
        """Count guesses of a head, each [n].

        source: int64, number of the text. rank: int64, of the target's token among the guesses;
        RANKS or more if it is not among the first, -1 if it cannot be guessed. chained: bool.
        """
        text, place = source.cpu().numpy(), rank.cpu().numpy()
        np.add.at(self.points[:, head], text, 1)
        np.add.at(self.silent[:, head], text, place < 0)
        np.add.at(self.accepted[:, head], text, acceptance.cpu().numpy())
        np.add.at(self.chains[:, head], text, chained.cpu().numpy())
        right = (place >= 0) & (place < RANKS)
        np.add.at(self.hits[:, head], (text[right], place[right]), 1)

    @property
    def table(self) -> AcceptanceTable:
        """Share of points that were right, by head and rank."""
        shares = self.hits.sum(axis=0) / np.maximum(self.points.sum(axis=0), 1)[:, None]
        return AcceptanceTable(tuple(map(tuple, shares.tolist())))

    def top(self, rank: int) -> list[float]:
        """By head: share of points at which one of the `rank` likeliest guesses was right."""
        return _rounded(_share(self.hits[..., :rank].sum(-1), self.points))

    def as_json(self) -> dict[str, Any]:
        """Shares by head, {"points", "texts", "top1", …}, and the tokens per pass of chains; "top1"
        and tokens per pass have 95 % intervals over texts. "right_in_a_row": by head, the share of
        all points at which it and all before it were right."""
        texts, first = len(self.points), self.points[:, 0]
        lengths = self.chains.sum(axis=1)

        def chain(picked: Numbers) -> Numbers:
            return 1 + _share(lengths @ picked, first @ picked)

        def interval(hits: Numbers, points: Numbers) -> list[float]:
            return _rounded(bootstrap(texts, lambda picked: _share(hits @ picked, points @ picked)))

        return {
            "points": int(first.sum()),
            "texts": texts,
            **{f"top{rank}": self.top(rank) for rank in (1, 2, 3, 4, 5, 10)},
            "top1_interval": [*map(interval, self.hits[..., 0].T, self.points.T)],
            "acceptance": _rounded(_share(self.accepted, self.points)),
            "cannot_be_guessed": _rounded(_share(self.silent, self.points)),
            "right_in_a_row": _rounded(self.chains.sum(axis=0) / max(1.0, first.sum())),
            "tokens_per_pass": round(float(chain(np.ones((texts, 1)))[0]), 3),
            "tokens_per_pass_interval": _rounded(bootstrap(texts, chain)),
        }


def bootstrap(texts: int, figure: Callable[[Numbers], Numbers]) -> Numbers:
    """95 % interval [low, high] of a figure on texts drawn with replacement, the same every time.

    figure: [texts, resamples], how often each text was drawn -> [resamples].
    """
    drawn = np.random.default_rng(0).multinomial(texts, [1 / texts] * texts, size=_RESAMPLES)
    return np.quantile(figure(drawn.T.astype(np.float64)), [0.025, 0.975])


def _share(part: Numbers, whole: Numbers) -> Numbers:
    """By head, summed over texts if there is such an axis; or by resample."""
    if part.ndim > 1:
        part, whole = part.sum(axis=0), whole.sum(axis=0)
    shares: Numbers = part / np.maximum(whole, 1)
    return shares


def _rounded(numbers: Numbers) -> list[float]:
    return [round(float(number), 4) for number in numbers]
