"""Where prompt tokens go in packed texts, and what they see there.

Prompt tokens after the text's token at `point` see the text up to that token and one another; the
text does not see them. So any number of points of a window can share one pass, as long as a mask
keeps their rows apart (PPD, section 4.3.1: random insertion; the official code has one point per
text).

    text: a b c d e, points 1 and 2, two prompt tokens, one embedding each

    row   point  sees            position   its guess is compared with
    S1    1      a b, S1         2          d
    S2    1      a b, S1 S2      3          e
    S1    2      a b c, S1       3          e
    …
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.drafters.prompt_tokens import PromptConfig
from paceline.training.batches import Batch

__all__ = ["PromptRows", "among_one_point"]


def among_one_point(config: PromptConfig) -> torch.Tensor:
    """[rows, rows] bool for the rows of one point, ordered by prompt token and then by embedding:
    which sees which (PPD, section 4.4.3).

    ensemble: the same embedding of this and earlier prompt tokens.
    decoder: all earlier rows, including those of the same prompt token (figure 4.7).
    encoder: all embeddings of this and earlier prompt tokens (section 4.4.3; the official code
    leaves out the earlier ones).
    """
    rows = torch.arange(config.prompt_tokens * config.epts)
    token, ept = rows // config.epts, rows % config.epts
    if config.mask == "ensemble":
        return (ept[:, None] == ept) & (token[:, None] >= token)
    if config.mask == "decoder":
        return rows[:, None] >= rows
    return token[:, None] >= token


@dataclass(frozen=True)
class PromptRows:
    """Prompt tokens at some points of a batch of windows.

    points: [batch, n] int64, places in the windows.
    config: decides how many rows follow each point.

    Rows are ordered by point, then prompt token, then embedding: n x prompt_tokens x epts of them.
    """

    batch: Batch
    points: torch.Tensor
    config: PromptConfig

    @property
    def each(self) -> int:
        """Rows per point."""
        return self.config.prompt_tokens * self.config.epts

    @property
    def embeddings(self) -> torch.Tensor:
        """[rows] int64: which of the prompt_tokens x epts embeddings each row reads."""
        return torch.arange(self.each, device=self.points.device).repeat(self.points.shape[1])

    @property
    def positions(self) -> torch.Tensor:
        """[batch, rows] int64: the i-th prompt token has the position of the i-th token to come."""
        ahead = 1 + torch.arange(self.each, device=self.points.device) // self.config.epts
        at = self.batch.position.gather(1, self.points)
        return (at[:, :, None] + ahead).flatten(1)

    def visible(self, window: int | None = None) -> torch.Tensor:
        """[batch, rows, slots] bool: the prefix tokens, the window, and the rows themselves.

        window: most positions that a layer sees, its own included; None for all.
        """
        positions, n = self.positions, self.points.shape[1]
        sees_text = self.batch.sees(self.points).repeat_interleave(self.each, dim=1)
        point = torch.arange(n * self.each, device=positions.device) // self.each
        among = among_one_point(self.config).to(positions.device).repeat(n, n)
        sees_rows = ((point[:, None] == point) & among).expand(len(positions), -1, -1)
        if window is not None:
            sees_text = sees_text & (positions[:, :, None] - self.batch.position[:, None] < window)
            sees_rows = sees_rows & (positions[:, :, None] - positions[:, None] < window)
        return torch.cat([self._sees_prefix(), sees_text, sees_rows], dim=-1)

    def _sees_prefix(self) -> torch.Tensor:
        """The i-th prompt token sees the i-th stretch of prefix tokens (section 4.4.1)."""
        batch, n = self.points.shape
        device, several = self.points.device, self.config.prefix_tokens
        token = torch.arange(n * self.each, device=device) % self.each // self.config.epts
        slots = torch.arange(self.config.prompt_tokens * several, device=device)
        return (token[:, None] == slots // max(several, 1)).expand(batch, -1, -1)
