"""The noise that the target will draw tokens with, for drafters that guess by logits.

A token is drawn as the argmax of logits plus noise, which depends on seed and position alone (see
`paceline.sampling`). A drafter that adds the same noise to its own logits guesses what will be
drawn rather than what is likely; the closer its logits are to the target's, the more often it is
right (Gumbel coupling: Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

import torch

from paceline.drafters.head_module import HeadModule
from paceline.noise import device_gumbel, noise_at
from paceline.sampling import Sampler
from paceline.warping import draws_there


class DrawNoise:
    """The noise of one text at a time, in the scale of a drafter's logits.

    to: what has the logits. vocabulary: the target's; its draw makes noise for all of it.
    """

    def __init__(self, to: HeadModule, vocabulary: int) -> None:
        self._to, self._vocabulary = to, vocabulary
        # What it depends on besides the position.
        self._source: tuple[int, float] | None = None
        self._rows: dict[int, torch.Tensor] = {}

    def begin(self, sampler: Sampler | None) -> None:
        """A text begins, or is resumed: what it needs again is kept. sampler: its own; if None, or if
        it draws the likeliest token, there is no noise."""
        source = None
        if sampler is not None and not sampler.draws_likeliest:
            source = sampler.seed, sampler.noise_scale
        if source != self._source:
            self._rows, self._source = {}, source  # in this order: an interruption loses rows only

    def rows(self, position: int, count: int) -> torch.Tensor | None:
        """The noise at `count` positions, float32 [count, outputs]; None for none."""
        if self._source is None:
            return None
        wanted = range(position, position + count)
        # Each row is made once: drafts overlap.
        known = {place: row for place, row in self._rows.items() if place >= position}
        known |= {at: self._row(*self._source, at) for at in wanted if at not in known}
        self._rows = known
        return torch.stack([known[place] for place in wanted])

    def _row(self, seed: int, scale: float, position: int) -> torch.Tensor:
        ids, device = self._to.token_ids, self._to.device
        tokens = slice(self._to.outputs) if ids is None else ids
        found = noise_of_draw(seed, position, self._vocabulary, tokens, device)
        return (scale * found).float().to(device)


def noise_of_draw(
    seed: int, position: int, size: int, tokens: torch.Tensor | slice, device: torch.device
) -> torch.Tensor:
    """The noise float64 of some of `size` tokens, made where a draw on this device makes it."""
    if draws_there(device):
        return device_gumbel(seed, position, size, device)[tokens]
    some = tokens if isinstance(tokens, slice) else tokens.cpu().numpy()
    return torch.from_numpy(noise_at(seed, position, size, some))
