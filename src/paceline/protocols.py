"""The contracts on one screen: what a drafter and a target owe the loop.

Implementations are final: nothing here is inherited from, only satisfied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

from paceline.errors import UsageError
from paceline.records import Path, Round
from paceline.tree import Tree

if TYPE_CHECKING:
    import torch

__all__ = [
    "HIDDEN_STATES",
    "VIRTUAL_TOKENS",
    "Drafter",
    "Planner",
    "Propose",
    "SeesStates",
    "ShowsStates",
    "SizedBy",
    "TakesVirtualTokens",
    "Target",
    "add_virtual_tokens",
    "check_capabilities",
    "states_of",
]

VIRTUAL_TOKENS = "virtual_tokens"
"""The capability of a target that is a `TakesVirtualTokens`."""

HIDDEN_STATES = "hidden_states"
"""The capability of a target that is a `ShowsStates`; who requires it is a `SeesStates`."""

SizedBy = Literal["nodes", "whole"]
"""How a planner may size a drafter's trees: node by node, or only whole against empty, because
rows that cannot be accepted (virtual ids) buy the guesses of the next round."""

Propose = Callable[[int], Tree]
"""Most nodes -> a text's tree."""


class Drafter(Protocol):
    """Proposes continuations of one text. Whatever it proposes, the text stays the same."""

    @property
    def requires(self) -> frozenset[str]:
        """Capabilities it needs of the target; most need none."""
        ...

    @property
    def sized_by(self) -> SizedBy:
        """How a planner may size its trees."""
        ...

    def start(self, context: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        """A text begins with these committed tokens; `references` are texts it may resemble."""
        ...

    def propose(self, budget: int) -> Tree:
        """A tree of at most `budget` nodes below the last committed token; may be empty."""
        ...

    def observe(self, round: Round) -> None:
        """Learn from a verified round, rejected nodes included."""
        ...


class Target(Protocol):
    """Runs the model whose output must not change; owns cache, masks and positions."""

    @property
    def vocab_size(self) -> int:
        """Ids below this can be drawn; ids at or above it are virtual."""
        ...

    @property
    def max_context(self) -> int | None:
        """Most tokens, prompt included, that the model can attend to; None where unlimited."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What it offers beyond logits, e.g. `VIRTUAL_TOKENS`."""
        ...

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        """Make the cache hold these texts but for the last token of each, their roots.

        The common prefix with what is held already stays, the rest is dropped, what is missing is
        filled in: prefill, rollback and the reuse of earlier turns are one operation.
        """
        ...

    def score(self, trees: Sequence[Tree]) -> Sequence[torch.Tensor]:
        """One pass over every node of every tree, one tree per synced text.

        Returns, per tree, raw logits [len(tree) + 1, vocab_size]: row 0 is the root's, row i + 1
        node i's.
        """
        ...

    def commit(self, paths: Sequence[Path]) -> None:
        """Keep the accepted nodes of the last `score` in the cache and drop the others; the last
        token of each path is the new root."""
        ...


class Planner(Protocol):
    """Decides how much is guessed in each round. Whatever it decides, the text stays the same."""

    def start(self, drafters: Sequence[Drafter]) -> None:
        """Texts begin that are written together, one drafter each."""
        ...

    def plan(self, proposals: Mapping[int, Propose]) -> Sequence[Tree]:
        """The trees of the next pass, in the order of `proposals`: of every text that goes on, by
        its place among all that began, the function that asks its drafter."""
        ...

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds of one pass; `Round.index` is the place of the text."""
        ...


class TakesVirtualTokens(Target, Protocol):
    """A target with the capability `VIRTUAL_TOKENS`: it reads ids at or beyond its vocabulary as
    embeddings that drafters give it."""

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """Take over embeddings [count, hidden] as the model's `inputs_embeds` has them, and return
        the id of the first; the others follow. Embeddings that are known already keep their ids, so
        several drafters with parts of their own can share a target.

        Raises UsageError where they do not fit the model.
        """
        ...


class SeesStates(Drafter, Protocol):
    """A drafter that requires `HIDDEN_STATES`."""

    def see(self, states: torch.Tensor) -> None:
        """Before each `propose`: the last hidden states [n, hidden] of the text's first n tokens.

        They are what the model's output head reads. In a text's first round, when the target may
        have read nothing yet, n is any number; later it is all tokens but the last, the root. The
        tensor is a view, which the next pass changes.
        """
        ...


class ShowsStates(Target, Protocol):
    """A target with the capability `HIDDEN_STATES`: drafters may look at what its model thinks.

    `keep_states` comes first, before a text is synced; the states are those of the passes that are
    made anyway.
    """

    def keep_states(self) -> None:
        """From now on keep the last hidden states of all that is in the cache."""
        ...

    def states(self, text: int) -> torch.Tensor:
        """[cached tokens, hidden] of one of the synced texts, see `SeesStates.see`."""
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The model's embeddings [..., hidden] of token ids int64 [...]."""
        ...

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [n, hidden] and biases [n] of the output head, for these tokens int64 [n] or for
        all of the vocabulary: scores are weights @ state + biases, before what a model does to
        them besides that keeps their order."""
        ...


def states_of(target: Target) -> ShowsStates:
    """The target, for a drafter that wants hidden states. Raises UsageError where it shows none."""
    if HIDDEN_STATES not in target.capabilities:
        raise UsageError(
            f"{type(target).__name__} shows no hidden states: choose another method or target"
        )
    return cast(ShowsStates, target)


def add_virtual_tokens(target: Target, embeddings: torch.Tensor) -> int:
    """See `TakesVirtualTokens`. Raises UsageError for a target that does not take any, too."""
    if VIRTUAL_TOKENS not in target.capabilities:
        raise UsageError(
            f"{type(target).__name__} takes no virtual tokens: choose another method or target"
        )
    return cast(TakesVirtualTokens, target).add_virtual_tokens(embeddings)


def check_capabilities(drafter: Drafter, target: Target) -> None:
    """Raises UsageError where `drafter` needs something that `target` does not offer."""
    missing = drafter.requires - target.capabilities
    if missing:
        raise UsageError(
            f"{type(drafter).__name__} needs {', '.join(sorted(missing))}, which "
            f"{type(target).__name__} does not offer: choose another method or target"
        )
