"""Medusa's decoding heads: residual blocks on the target's last state (Cai et al. 2024, section
2.1.1), then an output head of their own or, in the compact form, the target's.

For a small model with a large vocabulary, a full head is a fifth as large as the model (28 million
numbers at 576 x 49,152); a compact one stores the blocks alone (0.3 million).
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from paceline.drafters.guesses import (
    FoundTree,
    Guesses,
    RecordedGuesses,
    guesses_of,
)
from paceline.drafters.head_module import HeadModule, OutputHead, ResidualBlocks
from paceline.kernels import cuda_graph
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.cuda_graph import GraphRecorder
from paceline.kernels.likeliest import likeliest
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, layers_of
from paceline.trained_configs import MedusaConfig
from paceline.tree import Tree

_MOST_HEADS = 16  # MOST_HEADS


class MedusaPrograms:
    """Compact heads as two programs: their residual blocks on one state, and the output head on the
    results. Layers are of this kind."""

    def __init__(self, heads: MedusaHeads, kind: type[BlockLinear]) -> None:
        count, hidden, layer = heads.config.heads, heads.hidden_size, layers_of(kind)
        weights, biases = heads.blocks.weight[0].flatten(0, 1), heads.blocks.bias[0].flatten()
        build = Builder(hidden, layer)
        changed = F.linear(build.given, weights, biases)
        # The state is repeated for each head.
        self._blocks = build.program(F.silu(changed) + build.given)
        build = Builder(hidden, layer)
        self._head = build.program(heads.shared_head(build.given))
        self._parts = self._blocks.part(1), self._head.part(count)
        blocks, head = (part.native for part in self._parts)
        self._one = native.Medusa(blocks=blocks, head=head, heads=count, hidden=hidden)
        self._found = FoundTree(self._one.guesses, heads.outputs, heads.token_ids)
        self._ids = None if heads.token_ids is None else heads.token_ids.numpy()

    def tree(
        self, state: torch.Tensor, budget: int, ranks: int, noise: torch.Tensor | None = None
    ) -> Tree:
        """The `budget` likeliest paths over all heads after a state [1, hidden], by the heads'
        confidence in `ranks` guesses each, see `candidate_tree.likeliest`, in one call. noise:
        [heads, outputs], see `DrawNoise`.
        """
        one, state = self._one, state.float().contiguous()
        one.state = state.data_ptr()
        self._found.want(budget, ranks, noise)
        kernels().draft_medusa(ctypes.addressof(one))
        return self._found.tree()

    def guess(self, state: torch.Tensor, ranks: int, noise: torch.Tensor | None) -> Guesses:
        """See `MedusaHeads.guess`."""
        self._blocks.given(1)[:] = state.float().numpy()
        changed = self._blocks.run(1).reshape(self._one.heads, -1)
        self._head.given(len(changed))[:] = changed
        logits = self._head.run(len(changed))
        places, shares = likeliest(logits if noise is None else logits + noise.numpy(), ranks)
        tokens = places if self._ids is None else self._ids[places]
        # Rounding may push a row's sum slightly above 1.
        rows = [(row, max(1.0, sum(row))) for row in shares.tolist()]
        found = tuple(tuple([share / total for share in row]) for row, total in rows)
        return Guesses(tokens.tolist(), found)


class MedusaHeads(HeadModule):
    """All heads side by side.

    Parameters: "blocks.weight" [layers, heads, hidden, hidden], "blocks.bias" [layers, heads,
    hidden]; with full heads "output" [heads, outputs, hidden], which starts as the target's.
    """

    def __init__(
        self, config: MedusaConfig, head: OutputHead, token_ids: torch.Tensor | None = None
    ) -> None:
        super().__init__(head, token_ids)
        self.config: MedusaConfig = config
        if config.layers:
            self.blocks = ResidualBlocks(config.heads, config.layers, self.hidden_size)
        if config.form == "full":
            self.output = nn.Parameter(head[0].float().expand(config.heads, -1, -1).clone())
        self.to(self.device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [n, hidden] of tokens that the target has read -> logits [n, heads, outputs] for
        the tokens after the next one."""
        found = self.ends(states)
        logits = found if self.config.form == "full" else self.shared_head(found)
        return logits.transpose(0, 1).float()

    def ends(self, states: torch.Tensor) -> torch.Tensor:
        """States [n, hidden] -> results of the heads: rows [heads, n, hidden] for the target's
        output head or, from full heads, logits [heads, n, outputs]."""
        found = states.float().expand(self.config.heads, -1, -1)
        if self.config.layers:
            found = self.blocks(found)
        if self.config.form == "full":
            return torch.bmm(found, self.output.mT) + self._bias
        return found

    @torch.no_grad()
    def guess(self, state: torch.Tensor, ranks: int, noise: torch.Tensor | None = None) -> Guesses:
        """The `ranks` likeliest tokens of each head after the state [1, hidden] of the last token
        that the target has read. noise: [heads, outputs], see `DrawNoise`."""
        if self.programs is None and (recorder := cuda_graph.recorder_for(self.device)) is not None:
            self.programs = MedusaGraph(self, recorder)
        if isinstance(self.programs, MedusaPrograms | MedusaGraph):
            return self.programs.guess(state, ranks, noise)
        return guesses_of(self(state)[0], ranks, self.token_ids, noise)


class MedusaGraph:
    """Heads on a GPU, replayed from recordings: calling their operators takes longer than running
    them."""

    def __init__(self, heads: MedusaHeads, recorder: GraphRecorder) -> None:
        shape, count = (1, heads.hidden_size), heads.config.heads
        self._state = state = torch.zeros(shape, dtype=torch.float32, device=heads.device)
        self._by_ranks = cache(
            lambda ranks: RecordedGuesses(lambda: heads(state)[0], ranks, heads, count, recorder)
        )

    def guess(self, state: torch.Tensor, ranks: int, noise: torch.Tensor | None) -> Guesses:
        """See `MedusaHeads.guess`."""
        self._state.copy_(state)
        found: Guesses = self._by_ranks(ranks).found(noise)
        return found


def compile_medusa(heads: MedusaHeads, kind: type[BlockLinear]) -> MedusaPrograms | None:
    """Programs for compact heads of one layer; see `HeadModule.ready`."""
    config = heads.config
    small = config.form == "compact" and config.layers == 1 and config.heads <= _MOST_HEADS
    return MedusaPrograms(heads, kind) if small else None
