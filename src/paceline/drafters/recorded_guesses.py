"""What drafters record on a GPU: logits of fixed shape with a search for the likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.drafters.guesses import Guesses, as_guesses, likeliest
from paceline.kernels.cuda_graph import GraphRecorder, Repeated, on_device

__all__ = ["RecordedGuesses", "RecordedNoise"]


class RecordedNoise:
    """Noise of this shape, or none, where recordings read it; see `DrawNoise`. like: has its device
    and dtype."""

    def __init__(self, like: torch.Tensor, *shape: int) -> None:
        self.rows, self._any = like.new_zeros(shape), False

    def put(self, noise: torch.Tensor | None) -> None:
        """Replace it."""
        if noise is not None:
            self.rows.copy_(noise)
        elif self._any:
            self.rows.zero_()
        self._any = noise is not None


class RecordedGuesses:
    """Guesses by logits that `run` computes, always from and to the same addresses.

    run: logits [rows, outputs]. ranks, token_ids: see `likeliest`. noise: added to the logits.
    """

    def __init__(
        self,
        run: Callable[[], torch.Tensor],
        ranks: int,
        token_ids: torch.Tensor | None,
        noise: RecordedNoise,
        recorder: GraphRecorder,
    ) -> None:
        self._device, self._noise = noise.rows.device, noise

        def work() -> torch.Tensor:
            return likeliest(run(), ranks, token_ids, noise.rows)

        # How long drafts take decides whether there are more. The first one counts for little.
        self._work = Repeated(work, recorder, at_once=True)

    def found(self, noise: torch.Tensor | None) -> Guesses:
        """The likeliest tokens of each row, with this noise."""
        self._noise.put(noise)
        with on_device(self._device):
            return as_guesses(self._work())
