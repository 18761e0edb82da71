"""What the draft models of EAGLE and Chimera share: texts to learn from and a transformer block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.programs.rotary import Rotary
from paceline.trained_configs import ChimeraConfig, EagleConfig

Columns = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, each [batch, KV heads, n, head size]."""

_EPSILON = 1e-6


@dataclass(frozen=True)
class Stretches:
    """Texts side by side in rows, for training.

    tokens: [batch, length] int64. features: [batch, length, width] float32, what the drafter reads
    of the target at each: its states, for Chimera. position: [batch, length] int64, each token's
    place in its text; start: where in the row that text begins. points: [batch, n] int64, places in
    the row to draft after; the target has read up to and including these. sees: [batch, n, length]
    bool: tokens of the same text up to the point.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor
    points: torch.Tensor
    sees: torch.Tensor


def normal(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm of [..., numbers] with the scale `weight`, in float32."""
    found: torch.Tensor = F.rms_norm(states.float(), weight.shape, weight, _EPSILON)
    return found


class DraftBlock(nn.Module):
    """A block that fits every target: RMSNorm, rotary positions, a gated feed-forward.

    Parameters: "query", "key", "value", "join" of the attention, "gate", "up", "down" of the
    feed-forward, linear layers. Subclasses add the norms: "inner_norm" [hidden], before the
    feed-forward, and those of what the block reads.
    """

    inner_norm: nn.Parameter

    def _add_layers(self, config: ChimeraConfig | EagleConfig, hidden: int) -> None:
        queries = config.attention_heads * config.head_size
        keys = config.kv_heads * config.head_size
        self.query = nn.Linear(hidden, queries, bias=config.biases)
        self.key = nn.Linear(hidden, keys, bias=config.biases)
        self.value = nn.Linear(hidden, keys, bias=config.biases)
        self.join = nn.Linear(queries, hidden, bias=False)
        self.gate = nn.Linear(hidden, config.intermediate, bias=False)
        self.up = nn.Linear(hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, hidden, bias=False)
        self.rotary = Rotary(config.head_size, config.rotary_base)

    def _columns(self, states: torch.Tensor, places: torch.Tensor, norm: torch.Tensor) -> Columns:
        """Keys and values of states [batch, n, hidden] at places int64 [batch, n]."""
        inner = normal(states, norm)
        return self.rotary(self._split(self.key(inner)), places), self._split(self.value(inner))

    def _outputs(
        self,
        states: torch.Tensor,
        places: torch.Tensor,
        norm: torch.Tensor,
        columns: Columns,
        sees: torch.Tensor,
        own: Sequence[Columns] = (),
    ) -> torch.Tensor:
        """Outputs [batch, n, hidden] of rows. columns, sees, own: see `_attended`."""
        query = self.rotary(self._split(self.query(normal(states, norm))), places)
        return self.finished(states, _attended(query, columns, sees, own))

    def finished(self, states: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Outputs [..., hidden] of rows with these states, after their attention [..., heads *
        head size]."""
        states = states + self.join(attended)
        inner = normal(states, self.inner_norm)
        found: torch.Tensor = states + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return found

    def _split(self, rows: torch.Tensor) -> torch.Tensor:
        """[batch, n, heads * size] -> [batch, heads, n, size]."""
        batch, n, _ = rows.shape
        return rows.view(batch, n, -1, self.rotary.size).transpose(1, 2)


def _attended(
    query: torch.Tensor, columns: Columns, sees: torch.Tensor, own: Sequence[Columns]
) -> torch.Tensor:
    """Attention of rows over columns, [batch, n, heads * size]. query: [batch, heads, n, size].
    columns: shared by all rows; sees: [batch, n, columns] bool, which of them each row sees. own:
    each holds one column per row, seen by that row alone."""
    keys, values = columns
    if not own:  # as in drafting, which must be fast
        found = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=sees[:, None], enable_gqa=True
        )
        return found.transpose(1, 2).flatten(2)
    batch, heads, n, size = query.shape
    kv_heads, count = keys.shape[1:3]
    grouped = (query * size**-0.5).reshape(batch, kv_heads, -1, size)
    shape = (batch, kv_heads, heads // kv_heads, n)
    scores = (grouped @ keys.mT).view(*shape, count)
    scores.masked_fill_(~sees[:, None, None], -torch.inf)
    own_keys = torch.stack([each[0] for each in own], dim=-2)
    own_scores = torch.einsum("bkgnd,bkncd->bkgnc", grouped.view(*shape, size), own_keys)
    scores = torch.cat([scores, own_scores], dim=-1)
    own_values = torch.stack([each[1] for each in own], dim=-2)
    shares = scores.softmax(dim=-1)
    found = shares[..., :count].reshape(batch, kv_heads, -1, count) @ values
    found = found.view(*shape, size)
    found = found + torch.einsum("bkgnc,bkncd->bkgnd", shares[..., count:], own_values)
    rows: torch.Tensor = found.reshape(batch, heads, n, size).transpose(1, 2).flatten(2)
    return rows
