"""Chimera's draft model: n-gram encoder, full context encoder, residual heads (section 4.1).

The n-gram encoder makes a *green* state of the last tokens. From it and the target's *mature*
states, the full context encoder makes a draft state (see `paceline.drafters.context_encoder`). Head
i reads that beside the last mature state and guesses the token after a node at depth i; see
`chimera_levels.ModuleLevels` for a draft.

Green states depend on the n-gram alone, so they can be cached. Columns of logits are tokens, or
places in `token_ids`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import nn
from torch.nn import functional as F

from paceline.drafters.attention_rows import Columns, Stretches
from paceline.drafters.context_encoder import ContextEncoder, NgramEncoder, ngram_places
from paceline.drafters.head_module import (
    Compile,
    Embed,
    HeadModule,
    HeadWeights,
    OutputHead,
    ResidualBlocks,
    identities,
)
from paceline.kernels.linear import PlainLinear
from paceline.trained_configs import ChimeraConfig

_AT_ONCE = 512  # rows of logits


@dataclass(frozen=True)
class Drafted:
    """What training scores, by head.

    ends: rows [batch, n, hidden] for the target's output head or, from full heads, logits [batch,
    n, outputs], for the token 2 + head places after the point.
    states: [batch, n, hidden], draft states; each imitates the mature state 1 + head places after
    the point.
    """

    ends: list[torch.Tensor]
    states: list[torch.Tensor]


class ChimeraModel(HeadModule):
    """All three parts.

    head, token_ids: see `HeadModule`. embed: the target's embeddings.
    bottom: replaces the n-gram encoder, for the study; it has a method `whole`, too.

    Parameters: "bottom.*" and "encoder.*", see there. Full heads are "output" [heads, outputs,
    2 * hidden], which start as two copies of the target's, side by side. Compact ones are "joint"
    [heads, hidden, 2 * hidden] before the target's output head, which start as the draft state
    alone, and "blocks.*", see `ResidualBlocks`. Without `residual`, heads read hidden numbers. With
    a rank, "narrow" [heads, rank, 2 * hidden] and "joint" [heads, hidden, rank] make what is added
    to the draft state.
    """

    def __init__(
        self,
        config: ChimeraConfig,
        head: OutputHead,
        embed: Embed,
        token_ids: torch.Tensor | None = None,
        bottom: nn.Module | None = None,
    ) -> None:
        super().__init__(head, token_ids)
        self.config: ChimeraConfig = config
        hidden = self.hidden_size
        if bottom is None and config.bottom == "ngram":
            bottom = NgramEncoder(config.order, hidden, embed, config.rank)
        self.bottom = bottom or nn.Module()
        self.encoder = ContextEncoder(config, hidden)
        if config.form == "full":
            weight = head[0].float()
            reads = {"output": torch.cat([weight, weight], dim=-1) if config.residual else weight}
        elif config.rank:
            wide = hidden * (2 if config.residual else 1)
            narrow = torch.randn(config.heads, config.rank, wide) / wide**0.5
            reads = {"narrow": narrow, "joint": torch.zeros(hidden, config.rank)}
        else:
            # The target's head is made for states like the draft state. The last mature state
            # predicts a token that is already known; any other use of it is learned.
            reads = {"joint": identities(hidden, zeros=int(config.residual))}
        # Parameters with which a head reads its states, in order.
        self._read_by = tuple(reads)
        for name, start in reads.items():
            # Not by `expand` and `clone`, for the reason that `identities` gives.
            own = torch.empty(config.heads, *start.shape[-2:]).copy_(start)
            self.register_parameter(name, nn.Parameter(own))
        if config.layers:
            self.blocks = ResidualBlocks(config.heads, config.layers, hidden)
        # Each head's layers, once ready to guess.
        self.own_heads = nn.ModuleList()
        self.to(self.device)

    def ready(self, weights: HeadWeights = "fastest", compiled: Compile | None = None) -> Self:
        names = self._read_by
        for parts in zip(*(getattr(self, name) for name in names), strict=True):
            self.own_heads.append(nn.Sequential(*(PlainLinear(part, None) for part in parts)))
        for name in names:
            delattr(self, name)
        return super().ready(weights, compiled)

    def green(self, ids: torch.Tensor) -> torch.Tensor:
        """n-grams int64 [n, order] -> green states [n, hidden]."""
        with torch.no_grad():
            states: torch.Tensor = self.bottom(ids.to(self.device))
        return states

    def logits(self, depth: int, mature: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
        """Logits [n, outputs] for the tokens after n nodes at one depth, 0 for the root; at most
        heads - 1.

        mature: [hidden], the state of the last token that the target has read, just before the
        root. drafts: [n, hidden], the nodes' draft states.
        """
        return self.finished(self.ends(depth, mature.expand_as(drafts), drafts))

    def forward(self, texts: Stretches, own_guesses: bool = False) -> Drafted:
        """Draft after many points of texts at once; the root is the token after the point. Beyond a
        row's end its last token is read: drafts there mean nothing.

        own_guesses: nodes below the root are the likeliest guesses of the earlier heads ("student
        forcing"), not the tokens of the text; only with an n-gram encoder.
        """
        greens = self.bottom.whole(texts.tokens, texts.start)  # type: ignore[operator]
        points, encoder = texts.points, self.encoder
        of_texts = encoder.mature(texts.features, texts.position)
        of_greens = encoder.green(greens, texts.position)
        keys, values = (torch.cat(both, dim=2) for both in zip(of_texts, of_greens))
        sees = texts.sees.repeat(1, 1, 2)
        last = _rows(texts.features, points)
        root = texts.position.gather(1, points) + 1
        own: list[Columns] = []
        found = Drafted([], [])
        guessed: list[torch.Tensor] = []
        for depth in range(self.config.heads):
            if guessed:
                green = self._green_of_guesses(texts, guessed)
            else:
                green = _rows(greens, _ahead(texts, 1 + depth))
            own.append(encoder.green(green, root + depth))
            draft = encoder(green, root + depth, (keys, values), sees, own)
            own.append(encoder.mature(draft, root + depth))
            found.states.append(draft)
            found.ends.append(self.ends(depth, last, draft))
            if own_guesses and depth + 1 < self.config.heads:
                guessed.append(self._likeliest(found.ends[-1].detach()))
        return found

    def _likeliest(self, ends: torch.Tensor) -> torch.Tensor:
        """Token ids [...] of the likeliest guesses after `ends`."""
        # Logits of all would take gigabytes.
        pieces = torch.split(ends.flatten(0, -2), _AT_ONCE)
        best = torch.cat([self.finished(piece).argmax(dim=-1) for piece in pieces])
        best = best.view(ends.shape[:-1])
        return best if self.token_ids is None else self.token_ids[best]

    def _green_of_guesses(self, texts: Stretches, guessed: Sequence[torch.Tensor]) -> torch.Tensor:
        """Green states [batch, n, hidden] of the n-grams that end with each point's last guess."""
        bottom, roots = cast(NgramEncoder, self.bottom), _ahead(texts, 1)
        start = texts.start.gather(1, texts.points)
        wanted = ngram_places(roots + len(guessed), bottom.order, start)
        roots = roots[..., None]
        said = texts.tokens.gather(1, torch.minimum(wanted, roots).flatten(1)).view_as(wanted)
        own = torch.stack(list(guessed), dim=-1).gather(2, (wanted - roots - 1).clamp(min=0))
        states: torch.Tensor = bottom(torch.where(wanted <= roots, said, own))
        return states

    def finished(self, ends: torch.Tensor) -> torch.Tensor:
        """Logits [..., outputs] from `ends`."""
        return ends if self.config.form == "full" else self.shared_head(ends).float()

    def ends(self, depth: int, mature: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
        """See `Drafted.ends`."""
        found = torch.cat([mature.to(draft), draft], dim=-1) if self.config.residual else draft
        if self.own_heads:
            found = self.own_heads[depth](found)
        else:
            for name in self._read_by:
                found = F.linear(found, getattr(self, name)[depth])
        if self.config.form == "full":
            return (found + self._bias).float()
        if self.config.rank:
            found = draft + found
        return self.blocks(found, depth) if self.config.layers else found


def _ahead(texts: Stretches, count: int) -> torch.Tensor:
    """Places `count` tokens after the points, [rows, n]."""
    return (texts.points + count).clamp(max=texts.tokens.shape[1] - 1)


def _rows(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[batch, length, hidden], [batch, n] -> [batch, n, hidden]."""
    batch = torch.arange(len(states), device=states.device)[:, None]
    return states[batch, places]
