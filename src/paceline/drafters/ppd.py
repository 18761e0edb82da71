"""PPD: parallel prompt decoding (Chen et al. 2024, "Hardware-Aware Parallel Prompt Decoding for
Memory-Efficient Acceleration of LLM Inference", arXiv 2405.18628; thesis, chapters 4.5 and 5).

Trained prompt tokens stand behind the text and are read by the model like any token; the i-th one's
row guesses the token i further on than the next. Each guess carries prompt tokens of its own, so one
pass checks this round's guesses and makes the next round's.

    text … a, root b        S1 stands behind b and guesses the token after the next, S2 the one
                            after that; here both also stand behind the guess c
    tree: root ─┬─ c ─┬─ d
                │     └─ S1 ─ S2
                └─ S1 ─ S2

    c is right, d is not, the target says e instead: the next root is e, and the rows of S1 and S2
    behind c have the guesses for the two tokens behind e.

The paper's tree begins with the token that the last pass is certain of; here that is the root. So
guesses at depth i come from the i-th prompt token behind the last accepted node. How many there are
is the *state*, and each state has a tree of its own, see `paceline.planning.dynamic_tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.drafters.host import Host
from paceline.drafters.parts import check_parts, find_parts
from paceline.drafters.prompt_tokens import PromptTokens
from paceline.drafters.settings import at_least
from paceline.errors import ModelError, UsageError
from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.adaptive_tree import AdaptiveTree, unmeasured
from paceline.planning.sizing import MOST_WHOLE
from paceline.planning.tree_search import FittedTree
from paceline.planning.tree_shape import lay_out
from paceline.protocols import TREES, VIRTUAL_TOKENS, Drafter, SizedBy
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

if TYPE_CHECKING:
    import torch


__all__ = ["Ppd", "PpdSettings"]


@dataclass(frozen=True)
class PpdSettings:
    """Settings of `Ppd`.

    parts: folder or hub id of the prompt tokens; "" for those that come with this package.
    size: guesses and prompt tokens of a tree at most, without the root and the prompt tokens behind
    it, as the paper counts; 0 takes the size that promises most on this machine.
    width: rows of a pass at most, all counted; takes the place of `size`.

    Raises UsageError for a size out of range; ModelError for a folder without prompt tokens.
    """

    parts: str = ""
    size: int = 0
    width: int = 0

    def __post_init__(self) -> None:
        if self.size != 0:
            at_least(2, size=self.size)
        if self.width != 0:
            at_least(2, width=self.width)
        if self.size and self.width:
            raise UsageError("ppd takes a size or a width, not both")
        check_parts(PromptTokens, self.parts)


class Ppd(Drafter):
    """Guesses by prompt tokens that were trained for this model.

    host: the model.
    settings, changes: see `PpdSettings`; the latter are fields of it by name.

    Weights of guesses are the chances that they are accepted; of prompt tokens 0, since they never
    are, though without them there is nothing to guess in the next round.

    Raises ModelError where there are no prompt tokens for this model or they cannot be used,
    UsageError for a size out of range or a target that takes no virtual tokens.
    """

    requires = frozenset({TREES, VIRTUAL_TOKENS})
    sized_by: SizedBy = "whole"

    def __init__(self, host: Host, settings: PpdSettings | None = None, **changes: Any) -> None:
        own = replace(settings or PpdSettings(), **changes)
        found = find_parts(PromptTokens, own.parts, host.fingerprint)
        self._epts = found.config.epts
        if 0 < own.size < 1 + self._epts:
            raise UsageError(
                f"size must be at least {1 + self._epts}, a guess and a prompt token with "
                f"{self._epts} embeddings, got {own.size}"
            )
        table = _table(found, host.target.vocab_size)
        self._ranks = table.ranks
        self._weights = _weights(found)
        self._first = host.target.add_virtual_tokens(found.embeddings.flatten(0, 1))
        # What guesses turn out to be worth in one text is known in the next one.
        self._tree: AdaptiveTree = host.learn(
            (AdaptiveTree, own),
            lambda: AdaptiveTree(table, host.curve, own.size, self._epts, own.width, host.costs),
        )
        self._tree.fitting(MOST_WHOLE)  # takes long the first time: better here than in a round
        # Tokens by rank, likeliest first, for every distance that the last round can guess at.
        self._guesses: list[list[int]] = []
        self._length = 1
        # Guesses whose token is yet to come: how many tokens come before it, distance, tokens.
        self._open: list[tuple[int, int, list[int]]] = []

    def survey(self) -> list[FittedTree]:
        """What trees promise by width on the host's curve, see `survey_widths`."""
        return self._tree.survey()

    def start(self, text: TextStart) -> None:
        """Begin without guesses; what was learned about their worth is kept. References are not
        looked at."""
        self._guesses, self._open = [], []
        self._length = len(text.context)

    def propose(self, budget: int) -> Tree:
        """The tree of the state that the last round has led to, the first prompt tokens where there
        was none; empty where not even a guess with a prompt token fits."""
        tree = self._tree.fitting(budget)
        if tree is None:
            return EMPTY
        state = tree.states[min(len(self._guesses), tree.prompt_tokens)]
        shape = lay_out(state)
        guesses = [self._guesses[distance][rank] for distance, rank in shape.guesses]
        prompts = [self._first + embedding for embedding in shape.prompts]
        return Tree(
            (*guesses, *prompts), shape.parents, (*state.candidates.reach, *[0.0] * len(prompts))
        )

    def observe(self, round: Round) -> None:
        """Judge earlier guesses, and read the next ones behind the last accepted node."""
        self._judge(round.path.tokens)
        self._length += len(round.path.tokens)
        self._tree.follow(self._length - 1)
        self._guesses = self._read(round)
        self._open += [(place, place + 1, tokens) for place, tokens in enumerate(self._guesses)]

    def _judge(self, said: Sequence[int]) -> None:
        """Tell the tree about guesses whose token is now known. A far one may have to wait for
        another round: judged only where those before it are right, it would look too good."""
        waiting = []
        for ahead, distance, tokens in self._open:
            if ahead < len(said):
                right = said[ahead]
                rank = tokens.index(right) if right in tokens else None
                self._tree.observe(distance, rank)
            else:
                waiting.append((ahead - len(said), distance, tokens))
        self._open = waiting

    def _read(self, round: Round) -> list[list[int]]:
        """The likeliest tokens by distance, as far as the scored tree has prompt tokens behind the
        last accepted node: it may be another one than was proposed, or cut short."""
        last = round.path.nodes[-1] if round.path.nodes else ROOT
        above, rows = [last] * self._epts, []
        for prompt in range(len(self._weights)):
            first = self._first + prompt * self._epts
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


def _table(parts: PromptTokens, vocab_size: int) -> AcceptanceTable:
    """What trees are shaped by at first."""
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
