"""What rows of prompt tokens in the last pass guess: read, and judged when the text has got there.

See `paceline.drafters.ppd` for where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.drafters.host import Host
from paceline.drafters.prompt_tokens import PromptTokens
from paceline.errors import ModelError
from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.adaptive_tree import unmeasured
from paceline.records import Round
from paceline.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["PromptGuesses", "acceptance_of"]


class PromptGuesses:
    """The guesses of one text.

    parts: prompt tokens that were trained for the host's model, which gets their embeddings.
    judge: is told the distance of each guess whose token is known, and the rank of the right one,
    or None where none was right.

    first: id of the first virtual token. tokens: of the last round by rank, likeliest first, for
    every distance that can be guessed at.
    """

    def __init__(
        self, parts: PromptTokens, host: Host, judge: Callable[[int, int | None], None]
    ) -> None:
        self._epts = parts.config.epts
        self._ranks = acceptance_of(parts, host.target.vocab_size).ranks
        self._weights = _weights(parts)
        self._tell = judge
        self.first = host.target.add_virtual_tokens(parts.embeddings.flatten(0, 1))
        self.tokens: list[list[int]] = []
        # Guesses whose token is yet to come: how many tokens come before it, distance, tokens.
        self._open: list[tuple[int, int, list[int]]] = []

    def start(self) -> None:
        """A text begins, without guesses."""
        self.tokens, self._open = [], []

    def observe(self, round: Round, read: bool = True) -> None:
        """Judge earlier guesses, and read the next ones behind the last accepted node.

        read: whether there may be some in the tree.
        """
        if self._open:
            self._judge(round.path.tokens)
        self.tokens = self._read(round) if read else []
        self._open += [(place, place + 1, tokens) for place, tokens in enumerate(self.tokens)]

    def _judge(self, said: Sequence[int]) -> None:
        """Tell of guesses whose token is now known. A far one may have to wait for another round:
        judged only where those before it are right, it would look too good."""
        waiting = []
        for ahead, distance, tokens in self._open:
            if ahead < len(said):
                right = said[ahead]
                rank = tokens.index(right) if right in tokens else None
                self._tell(distance, rank)
            else:
                waiting.append((ahead - len(said), distance, tokens))
        self._open = waiting

    def _read(self, round: Round) -> list[list[int]]:
        """The likeliest tokens by distance, as far as the scored tree has prompt tokens behind the
        last accepted node: it may be another one than was proposed, or cut short."""
        last = round.path.nodes[-1] if round.path.nodes else ROOT
        above, rows = [last] * self._epts, []
        for prompt in range(len(self._weights)):
            first = self.first + prompt * self._epts
            found = [
                round.tree.children.get(node, {}).get(first + ept) for ept, node in enumerate(above)
            ]
            above = [node for node in found if node is not None]
            if len(above) < self._epts:
                break
            rows.append([node + 1 for node in above])
        if not rows:
            return []
        return [
            self._likeliest(round.logits, group, weights)
            for group, weights in zip(rows, self._weights)
        ]

    def _likeliest(
        self, logits: torch.Tensor, rows: Sequence[int], weights: torch.Tensor
    ) -> list[int]:
        """By the weighted sum of some rows; of one row as it lies, without a copy."""
        from paceline.kernels.likeliest import likeliest  # torch takes a while to import

        if self._epts > 1:
            scores = weights.to(logits.device) @ logits[list(rows)].float()
        else:
            scores = logits[rows[0]]
        places, _ = likeliest(scores[None].float().cpu().numpy(), self._ranks)
        found: list[int] = places[0].tolist()
        return found


def acceptance_of(parts: PromptTokens, vocab_size: int) -> AcceptanceTable:
    """What trees are shaped by at first: as measured with the parts, else a guess.

    Raises ModelError where it does not fit the parts or the vocabulary.
    """
    most = parts.config.prompt_tokens
    table = parts.acceptance or unmeasured(most, min(10, vocab_size))
    if table.distances != most or table.ranks > vocab_size:
        raise ModelError(
            f"the table of acceptance beside the prompt tokens has {table.distances} distances and "
            f"{table.ranks} ranks, but there are {most} prompt tokens and {vocab_size} tokens: "
            "measure it again"
        )
    return table


def _weights(parts: PromptTokens) -> torch.Tensor:
    """[prompt_tokens, epts]: what the logits of each EPT count (PPD, section 4.4.4); by default
    all alike (4.2)."""
    import torch

    shape = (parts.config.prompt_tokens, parts.config.epts)
    if not parts.config.learned_weights:
        return torch.full(shape, 1 / parts.config.epts)
    weights = parts.tensors.get("ept_weights")
    if weights is None or tuple(weights.shape) != shape:
        raise ModelError(
            "the prompt tokens are damaged: the weights of their embeddings are missing or not "
            f"{shape[0]} times {shape[1]}"
        )
    return weights.float()
