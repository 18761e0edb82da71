"""Where prompt tokens stand in a text, and what they see there.

Prompt tokens behind the text's token at `point` look at the text up to that token and at one
another; the text does not see them. So any number of points of one text can share one pass, as
long as a mask keeps their rows apart (PPD, section 4.3.1: random insertion; the official code has
one point per text).

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

__all__ = ["Insertion", "among_one_point"]


def among_one_point(config: PromptConfig) -> torch.Tensor:
    """[rows, rows] bool for the rows of one point, ordered by prompt token and then by embedding:
    which sees which (PPD, section 4.4.3).

    ensemble: the same embedding of this and earlier prompt tokens.
    decoder: all earlier rows, those of the own prompt token included (figure 4.7).
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
class Insertion:
    """Prompt tokens at some points of the texts of a batch.

    points: [batch, n] int64, places in the texts, 0 <= point; all texts have as many.
    config: how many rows there are behind each point.
    length: slots of the text in the cache; the prefix tokens' own come before them.

    Rows are ordered by point, then prompt token, then embedding: n x prompt_tokens x epts of them.
    """

    points: torch.Tensor
    config: PromptConfig
    length: int

    @property
    def rows_per_point(self) -> int:
        """Rows behind each point."""
        return self.config.prompt_tokens * self.config.epts

    @property
    def embedding_rows(self) -> torch.Tensor:
        """[rows] int64: which of the prompt_tokens x epts embeddings each row reads."""
        return torch.arange(self.rows_per_point).repeat(self.points.shape[1])

    @property
    def positions(self) -> torch.Tensor:
        """[batch, rows] int64: the i-th prompt token stands where the i-th token to come will."""
        ahead = 1 + torch.arange(self.rows_per_point) // self.config.epts
        return (self.points[:, :, None] + ahead).flatten(1)

    @property
    def prefix_slots(self) -> int:
        """Slots of all prefix tokens."""
        return self.config.prompt_tokens * self.config.prefix_tokens

    def visible(self, window: int | None = None) -> torch.Tensor:
        """[batch, rows, slots] bool: the prefix tokens, the text, and the rows themselves.

        window: of a layer that sees no further back than so many positions, itself included.
        """
        batch, n = self.points.shape
        rows = n * self.rows_per_point
        reach = self.points.repeat_interleave(self.rows_per_point, dim=1)
        text = torch.arange(self.length)
        sees_text = text <= reach[:, :, None]
        if window is not None:
            sees_text &= self.positions[:, :, None] - text < window
        point = torch.arange(rows) // self.rows_per_point
        own = (point[:, None] == point) & among_one_point(self.config).repeat(n, n)
        if window is not None:
            steps = self.positions[:, :, None] - self.positions[:, None, :]
            sees_rows = own & (steps < window)
        else:
            sees_rows = own.expand(batch, rows, rows)
        return torch.cat([self._sees_prefix(batch, rows), sees_text, sees_rows], dim=-1)

    def targets(self) -> torch.Tensor:
        """[batch, n, prompt_tokens] int64: the places in the text whose scores are what the prompt
        tokens learn; the token after such a place is the one they guess."""
        return self.points[:, :, None] + 1 + torch.arange(self.config.prompt_tokens)

    def _sees_prefix(self, batch: int, rows: int) -> torch.Tensor:
        """The i-th prompt token sees the i-th stretch of prefix tokens (section 4.4.1)."""
        token = torch.arange(rows) % self.rows_per_point // self.config.epts
        owner = torch.arange(self.prefix_slots) // max(self.config.prefix_tokens, 1)
        return (token[:, None] == owner).expand(batch, rows, self.prefix_slots)
