"""What heads guess: the likeliest tokens with their probabilities, and trees of them; computed by
torch, in the C library, or recorded on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.drafters.head_module import HeadModule
from paceline.kernels.cuda_graph import GraphRecorder, Repeated, on_device
from paceline.kernels.native import signatures as native
from paceline.tree import Tree
from paceline.tree_columns import TreeColumns


@dataclass(frozen=True)
class Guesses:
    """The likeliest tokens of some rows of logits, likeliest first.

    tokens: one list per row. probabilities: of the same tokens, by the heads themselves; those of a
    row add up to at most 1.
    """

    tokens: list[list[int]]
    probabilities: tuple[tuple[float, ...], ...]


def guesses_of(
    logits: torch.Tensor,
    ranks: int,
    token_ids: torch.Tensor | None,
    noise: torch.Tensor | None = None,
) -> Guesses:
    """The `ranks` likeliest tokens of each row, fewer where there are fewer columns; see
    `likeliest`."""
    return as_guesses(likeliest(logits, ranks, token_ids, noise))


def likeliest(
    logits: torch.Tensor,
    ranks: int,
    token_ids: torch.Tensor | None,
    noise: torch.Tensor | None = None,
) -> torch.Tensor:
    """Tokens and shares of the `ranks` likeliest columns of each row: float64 [2, rows, ranks], as
    doubles hold any token id and come from a GPU in one transfer.

    logits: [rows, outputs]. token_ids: [outputs] int64, the tokens that columns stand for; None:
    columns are token ids. noise: of the target's draw, one row for all or one for each.
    """
    logits = logits if noise is None else logits.float() + noise
    best = logits.float().softmax(dim=-1).topk(min(ranks, logits.shape[-1]), dim=-1)
    places = best.indices if token_ids is None else token_ids[best.indices]
    # What cannot be computed is no guess, as in the library.
    shares = best.values.double().nan_to_num()
    # Rounding may push a row's sum slightly above 1.
    shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return torch.stack([places.double(), shares])


def as_guesses(found: torch.Tensor) -> Guesses:
    """Fetch what `likeliest` has found; a GPU is waited for."""
    ids, shares = found.tolist()
    return Guesses([[int(token) for token in row] for row in ids], tuple(map(tuple, shares)))


class FoundTree:
    """Memory for a tree that the C library makes of the guesses of heads. one: what it is asked.
    outputs: columns of logits. token_ids: [outputs] int64, the tokens they stand for; None: columns
    are token ids."""

    def __init__(self, one: native.Guesses, outputs: int, token_ids: torch.Tensor | None) -> None:
        self._ids = token_ids  # held for the library
        self._one, self._columns = one, TreeColumns(one.found)
        one.outputs, one.ids = outputs, None if token_ids is None else token_ids.data_ptr()

    def want(self, budget: int, ranks: int, noise: torch.Tensor | None = None) -> None:
        """Ask for a tree of at most `budget` nodes, by `ranks` guesses per row. noise: float32
        [depths, outputs], see `DrawNoise`."""
        one, self._noise = self._one, noise  # held for the library
        one.noise, one.heard = (None, 0) if noise is None else (noise.data_ptr(), len(noise))
        one.budget, one.ranks = budget, min(ranks, one.outputs)
        self._columns.make_room(budget)

    def tree(self) -> Tree:
        """The tree found."""
        return self._columns.tree()


class RecordedGuesses:
    """Guesses by logits that `run` computes, always from and to the same addresses. run: logits
    [rows, outputs] of `heads`. ranks: see `likeliest`. noise: rows of it, one for all or one for
    each."""

    def __init__(
        self,
        run: Callable[[], torch.Tensor],
        ranks: int,
        heads: HeadModule,
        noise: int,
        recorder: GraphRecorder,
    ) -> None:
        ids, shape = heads.token_ids, (noise, heads.outputs)
        self._noise = own = torch.zeros(shape, dtype=torch.float32, device=heads.device)
        self._any = False  # whether there is noise
        # How long drafts take decides whether there are more. The first one counts for little.
        self._work = Repeated(lambda: likeliest(run(), ranks, ids, own), recorder, at_once=True)

    def found(self, noise: torch.Tensor | None) -> Guesses:
        """The likeliest tokens of each row, with this noise."""
        if noise is not None:
            self._noise.copy_(noise)
        elif self._any:
            self._noise.zero_()
        self._any = noise is not None
        with on_device(self._noise.device):
            return as_guesses(self._work())
