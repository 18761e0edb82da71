"""The noise that the target will draw tokens with, for drafters that guess by logits.

A token is drawn as the argmax of logits plus noise, which depends on seed and position alone (see
`paceline.sampling`). A drafter that adds the same noise to its own logits guesses what will be
drawn rather than what is likely; the closer its logits are to the target's, the more often it is
right (Gumbel coupling: Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.noise import noise_at

if TYPE_CHECKING:
    import torch

    from paceline.drafters.medusa_heads import HeadModule
    from paceline.sampling import Sampler

__all__ = ["DrawNoise"]


class DrawNoise:
    """The noise of one text, in the scale of a drafter's logits.

    to: what has the logits. vocabulary: the target's; its draw makes noise for all of it. sampler:
    the text's; if greedy or None, there is no noise.
    """

    def __init__(self, to: HeadModule, vocabulary: int, sampler: Sampler | None = None) -> None:
        self._to, self._vocabulary = to, vocabulary
        self._sampler = None if sampler is None or sampler.greedy else sampler
        self._rows: dict[int, torch.Tensor] = {}

    def for_text(self, sampler: Sampler | None) -> DrawNoise:
        """The noise of another text."""
        return DrawNoise(self._to, self._vocabulary, sampler)

    def rows(self, position: int, count: int) -> torch.Tensor | None:
        """The noise at `count` positions, float32 [count, outputs]; None for none. Each row is made
        once: drafts overlap."""
        import torch

        if self._sampler is None:
            return None
        known = self._rows
        self._rows = {
            place: known[place] if place in known else self._row(self._sampler, place)
            for place in range(position, position + count)
        }
        return torch.stack(list(self._rows.values()))

    def _row(self, sampler: Sampler, position: int) -> torch.Tensor:
        import torch

        from paceline.sampling import device_gumbel
        from paceline.warping import draws_there

        ids, outputs, device = self._to.token_ids, self._to.outputs, self._to.device
        if draws_there(device):
            noise = device_gumbel(sampler.seed, position, self._vocabulary, device)
            found = noise[:outputs] if ids is None else noise[ids]
        else:
            tokens = slice(outputs) if ids is None else ids.cpu().numpy()
            found = torch.from_numpy(noise_at(sampler.seed, position, self._vocabulary, tokens))
        return (sampler.temperature * found).float().to(device)
