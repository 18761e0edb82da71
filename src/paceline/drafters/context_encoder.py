"""Chimera's full context encoder (section 4.1.2): one transformer block over the target's own
states and over those that an n-gram encoder makes of tokens.

Each place of the text has two columns: the *mature* state of its token, after the target's last
normalisation, and the *green* state of the n-gram that ends there. The keys and values of a column
depend only on its state and place, so they are computed once and kept.

Rows are *draft nodes*: the root, which the target has not read yet, and guesses after it. A node's
query is its own green state. It sees

    mature and green columns of all tokens before the root,
    green columns of the nodes on the path from the root to itself, its own included,
    draft states of its ancestors, as columns like mature ones,

and yields its draft state, which is trained to match the mature state the target will have there.

    text … a b, root c; nodes d (child of c) and e (child of d). At the places of a, b, c, d, e:

    row   mature   green      draft
    c     … a b    … a b c
    d     … a b    … a b c d  c
    e     … a b    … a b c d e  c d

For the first step this is the mask [[M, M], [M, M]]. For later ones it is the mask that the
official code intends (own draft states on the diagonal); there a wrong sign hides these states. In
that code the green columns of later steps are those of the guesses from all places at once; here
they are those of the tokens themselves, for which the guesses stand.

The block is our own, so that it fits every target: RMSNorm before attention and feed-forward,
rotary positions, a gated feed-forward. It starts with random weights or as a copy of the target's
last layer, see the `ChimeraSettings` of training; a copy has biases for queries, keys and values if
that layer does. Mature and green columns have a normalisation each, which tells the two kinds
apart. After the block there is none, as in the paper, or one like the target's last (`final_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from paceline.drafters.attention_rows import Columns, Turns, attended, normal, split, wider
from paceline.drafters.head_configs import ChimeraConfig

__all__ = ["Context", "ContextEncoder", "Draft"]


class ContextEncoder(nn.Module):
    """The block; the module's docstring says what a row sees.

    Parameters: "mature_norm", "green_norm", "inner_norm" [hidden], with `final_norm` "output_norm";
    "query", "key", "value", "join" of the attention, "gate", "up", "down" of the feed-forward,
    linear layers.
    """

    output_norm: nn.Parameter | None

    def __init__(self, config: ChimeraConfig, hidden: int) -> None:
        super().__init__()
        self.config = config
        queries = config.attention_heads * config.head_size
        keys = config.kv_heads * config.head_size
        self.mature_norm = nn.Parameter(torch.ones(hidden))
        self.green_norm = nn.Parameter(torch.ones(hidden))
        self.inner_norm = nn.Parameter(torch.ones(hidden))
        self.query = nn.Linear(hidden, queries, bias=config.biases)
        self.key = nn.Linear(hidden, keys, bias=config.biases)
        self.value = nn.Linear(hidden, keys, bias=config.biases)
        self.join = nn.Linear(queries, hidden, bias=False)
        self.gate = nn.Linear(hidden, config.intermediate, bias=False)
        self.up = nn.Linear(hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, hidden, bias=False)
        ends = nn.Parameter(torch.ones(hidden)) if config.final_norm else None
        self.register_parameter("output_norm", ends)
        self._turns = Turns(config.head_size, config.rotary_base)

    def mature(self, states: torch.Tensor, places: torch.Tensor) -> Columns:
        """Columns of mature or draft states [batch, n, hidden] at places int64 [batch, n]."""
        return self._columns(states, places, self.mature_norm)

    def green(self, states: torch.Tensor, places: torch.Tensor) -> Columns:
        """Columns of green states [batch, n, hidden] at places int64 [batch, n]."""
        return self._columns(states, places, self.green_norm)

    def forward(
        self,
        greens: torch.Tensor,
        places: torch.Tensor,
        columns: Columns,
        sees: torch.Tensor,
        own: Sequence[Columns] = (),
    ) -> torch.Tensor:
        """Draft states [batch, n, hidden] of rows.

        greens: [batch, n, hidden], the rows' green states. places: [batch, n] int64.
        columns, sees, own: see `attended`.
        """
        inner = normal(greens, self.green_norm)
        query = self._turns(split(self.query(inner), self.config.head_size), places)
        states = greens + self.join(attended(query, columns, sees, own))
        inner = normal(states, self.inner_norm)
        drafts: torch.Tensor = states + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return drafts if self.output_norm is None else normal(drafts, self.output_norm)

    def _columns(self, states: torch.Tensor, places: torch.Tensor, norm: torch.Tensor) -> Columns:
        inner, size = normal(states, norm), self.config.head_size
        return self._turns(split(self.key(inner), size), places), split(self.value(inner), size)


class Context:
    """What the encoder keeps of one text: two columns for every token that the target has read.

    capacity: tokens to make room for at first; it grows.
    """

    def __init__(self, encoder: ContextEncoder, capacity: int = 256) -> None:
        self.encoder = encoder
        self.length = 0
        config, like = encoder.config, encoder.mature_norm
        shape = (1, config.kv_heads, 2 * max(capacity, 1), config.head_size)
        self._held = (like.new_zeros(shape), like.new_zeros(shape))

    @torch.no_grad()
    def extend(self, matures: torch.Tensor, greens: torch.Tensor) -> None:
        """Append tokens that were read: their mature states and the green states of the n-grams
        that end there, both [n, hidden], n >= 0."""
        count = len(matures)
        if not count:
            return
        places = torch.arange(self.length, self.length + count, device=matures.device)[None]
        # A token's two columns are adjacent, so that any prefix can be kept.
        self.put(2 * self.length, self.encoder.mature(matures[None].float(), places), 2)
        self.put(2 * self.length + 1, self.encoder.green(greens[None].float(), places), 2)
        self.length += count

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        self.length = min(self.length, length)

    def put(self, first: int, columns: Columns, step: int = 1) -> None:
        """Write columns to slots first, first + step, …; for this class and `Draft`."""
        end = first + step * columns[0].shape[2]
        if end > self._held[0].shape[2]:
            self._held = (wider(self._held[0], end), wider(self._held[1], end))
        for held, new in zip(self._held, columns):
            held[:, :, first:end:step] = new

    def columns(self, end: int) -> Columns:
        """The first `end` slots."""
        return self._held[0][:, :, :end], self._held[1][:, :, :end]


class Draft:
    """Nodes after the text of a context, grown level by level. The context must not change
    meanwhile, since the nodes' columns follow its own."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._end = 2 * context.length
        self._depths: list[int] = []
        # By node: the slots it sees after the context, and the slot of its draft state.
        self._sees: list[list[int]] = []
        self._slots: list[int] = []
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def grow(self, greens: torch.Tensor, parents: Sequence[int]) -> torch.Tensor:
        """Add m nodes and return their draft states [m, hidden].

        greens: [m, hidden], the green states of the n-grams that end with the nodes' tokens.
        parents: the number of each node's parent, added in an earlier call; -1 for the root, which
        comes first and alone. Nodes are numbered in the order they are added.
        """
        context = self.context
        self._keep_drafts()
        first = self._end
        self._end += len(parents)
        for slot, parent in enumerate(parents, start=first):
            above = [] if parent < 0 else [*self._sees[parent], self._slots[parent]]
            self._sees.append([*above, slot])
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
        depths = torch.tensor(self._depths[-len(parents) :], device=greens.device)
        places = (context.length + depths)[None]
        context.put(first, context.encoder.green(greens[None].float(), places))
        columns = context.columns(self._end)
        drafts: torch.Tensor = context.encoder(
            greens[None].float(), places, columns, self._mask(len(parents)).to(greens.device)
        )[0]
        self._pending = (drafts, places)
        return drafts

    def _mask(self, count: int) -> torch.Tensor:
        """[1, count, columns] bool: what the last `count` nodes see."""
        sees = np.zeros((1, count, self._end), dtype=bool)  # indexing a tensor is slow
        sees[..., : 2 * self.context.length] = True
        for row, slots in enumerate(self._sees[-count:]):
            sees[0, row, slots] = True
        return torch.from_numpy(sees)

    def _keep_drafts(self) -> None:
        """Write the columns of the last call's draft states, now that nodes follow them."""
        if self._pending is not None:
            drafts, places = self._pending
            self.context.put(self._end, self.context.encoder.mature(drafts[None], places))
            self._slots += range(self._end, self._end + len(drafts))
            self._end += len(drafts)
