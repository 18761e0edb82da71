"""The contracts on one screen: what a drafter, a target and a planner owe the loop.

What each may do besides has a default here and is declared: a drafter names what it needs of a
target in `requires`, a target names what it offers in `capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from paceline.errors import UsageError
from paceline.records import Path, Round, SourceRound, TargetInfo, TextStart, WordTable
from paceline.tree import Tree

if TYPE_CHECKING:
    import torch

    from paceline.chains import ChainFound, ChainRequest
    from paceline.scores import TokenScores

__all__ = [
    "CHAINS",
    "HIDDEN_STATES",
    "LAYER_OUTPUTS",
    "SHADOW_TOKENS",
    "TREES",
    "VIRTUAL_TOKENS",
    "Drafter",
    "Planner",
    "Propose",
    "SizedBy",
    "Target",
    "check_capabilities",
]

TREES = "trees"
"""The capability of a target that scores any tree; others are given chains only."""

VIRTUAL_TOKENS = "virtual_tokens"
"""The capability of a target that reads ids at or beyond its vocabulary as embeddings given to
`Target.add_virtual_tokens`."""

HIDDEN_STATES = "hidden_states"
"""The capability of a target that has `Target.states`, `embed` and `output_head`."""

LAYER_OUTPUTS = "layer_outputs"
"""The capability of a target that keeps the outputs of its layers beside its hidden states."""

SHADOW_TOKENS = "shadow_tokens"
"""The capability of a target that reads trees as `Tree.as_read` has them, shadows as tokens."""

CHAINS = "chains"
"""The capability of a target that has `Target.follow`, which says one token after the other at
little more than what the passes cost."""

SizedBy = Literal["nodes", "whole"]
"""How a planner may size a drafter's trees: node by node, or only whole against empty, because
rows that cannot be accepted (virtual ids) buy the guesses of the next round."""

Propose = Callable[[int], Tree]
"""Most nodes -> a text's tree."""


class Drafter(ABC):
    """Proposes continuations of one text at a time. Whatever it proposes, the text stays the same.

    requires: capabilities that it needs of the target. sized_by: how a planner may size its trees.
    source_names: of those whose guesses it unites, in the order of the bits of `Tree.sources`; ()
    where it does not say who proposed what.
    layers: ascending from 1 on, whose outputs it wants in the place of last states; () for none.
    promise: tokens that a round with it brought more than one without, where its parts say what was
    measured when they were made; 0 where nobody knows.
    passive: it never guesses, and wants no guesses that a constraint makes for it either.
    Settings: of a class that is named as a method from outside: a frozen dataclass with a default
    for every field, whose fields are the constructor's keyword arguments; None where it takes none.
    """

    requires: frozenset[str] = frozenset()
    sized_by: SizedBy = "nodes"
    source_names: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    promise: float = 0.0
    passive: bool = False
    Settings: ClassVar[type[Any] | None] = None

    @abstractmethod
    def start(self, text: TextStart) -> None:
        """A text begins."""

    @abstractmethod
    def propose(self, budget: int) -> Tree:
        """A tree of at most `budget` nodes below the last committed token; may be empty."""

    def complete(self, tree: Tree) -> Tree:
        """After `propose`: what the planner has left of the tree, with rows that are no guesses."""
        return tree

    @abstractmethod
    def observe(self, round: Round) -> None:
        """Learn from a verified round, rejected nodes included."""

    def resume(self, text: TextStart) -> None:
        """The text goes on as `text.context`, which may differ in its last tokens from what was
        observed, as a draft model's does after every rejection. Who can keep what stays useful."""
        self.start(text)

    def observe_states(self, states: torch.Tensor) -> None:
        """Before each `propose`, where `HIDDEN_STATES` are required: the last hidden states
        [n, hidden] of the text's first n tokens; or the outputs of `layers` side by side.

        They are what the model's output head reads. In a text's first round, when the target may
        have read nothing yet, n is any number; later it is all tokens but the last, the root. The
        tensor is a view, which the next pass changes.
        """

    def offer_states(self, states: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        """Called in the place of `observe_states`, which it calls with the states for `layers`. Who does not
        want them every time may keep the function until its `propose` ends."""
        self.observe_states(states(self.layers))

    def stop(self) -> None:
        """The text has ended or was given up: let go of what was held for it alone."""

    def unread(self) -> int:
        """How many tokens of the text the next tree takes more time for, because they have to be
        read first; 0 where that takes none worth speaking of."""
        return 0

    def report(self) -> tuple[SourceRound, ...]:
        """Before each `observe`: what each of `source_names` did for the round; () without any."""
        return ()


class Target(ABC):
    """Runs the model whose output must not change; owns cache, masks and positions.

    A text has a slot from `open` to `close`. In the cache are its tokens that were read; those to
    be read next are pending, the last of which is the root, below which trees hang.

    vocab_size: ids below this can be drawn; ids at or above it are virtual.
    max_context: most tokens, prompt included, that the model can attend to; None where unlimited.
    capabilities: what it offers besides, e.g. `TREES`.
    """

    vocab_size: int
    max_context: int | None
    capabilities: frozenset[str]

    @abstractmethod
    def open(self, context: Sequence[int]) -> int:
        """A slot for a text of at least one token. What is in the cache of the longest beginning
        that it shares with another text, open or closed, need not be read again."""

    @abstractmethod
    def close(self, slot: int) -> None:
        """The text of `slot` has ended. Its cache may be kept for texts that begin alike."""

    @abstractmethod
    def forget(self) -> None:
        """Let go of what was kept of closed texts."""

    @abstractmethod
    def pending(self, slot: int) -> int:
        """How many tokens in front of the root are still to be read."""

    @abstractmethod
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """One pass over every node of every tree, by slot; other slots take no part.

        prefill: slots without a tree, of whose pending tokens at most so many are read beside.

        Returns, per tree, raw logits [len(tree) + 1, vocab_size]: row 0 is the root's, row i + 1
        node i's. Where a text with a tree has tokens pending they are read first.
        """

    @abstractmethod
    def commit(self, paths: Mapping[int, Path]) -> None:
        """Keep the accepted nodes of the last `score` in the cache, by slot, and drop the others;
        the last token of each path is the new root."""

    @abstractmethod
    def describe(self) -> TargetInfo:
        """What it is and where it runs, for reports and for what is kept of measurements."""

    def prefill(self, slot: int, most: int) -> int:
        """Read at most so many pending tokens in a pass of their own; how many are left."""
        self.score({}, {slot: most})
        return self.pending(slot)

    def settle(self) -> None:
        """Wait for what goes on in the background after loading; whoever measures does."""

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """With `VIRTUAL_TOKENS`: take over embeddings [count, hidden] as the model's
        `inputs_embeds` has them, and return the id of the first; the others follow. Embeddings
        that are known already keep their ids, so drafters with parts of their own share a target.

        Raises UsageError where they do not fit the model.
        """
        raise self._lacks("virtual tokens")

    def follow(self, slot: int, kept: int, tokens: Sequence[int]) -> TokenScores:
        """With `CHAINS`: the first `kept` tokens of a text stay, then come these; read what is not
        in the cache yet, the last token too, and score the one that comes next.

        All of the text has at least one token. From then on it is followed only, until it is
        closed. The scores are a view, which the next pass overwrites.
        """
        raise self._lacks("chains")

    def generate_chain(
        self, slot: int, kept: int, tokens: Sequence[int], wanted: ChainRequest
    ) -> ChainFound | None:
        """With `CHAINS`: as `follow`, and then more passes, each of which reads the likeliest token
        that the one before has found.

        None where that is no faster than to ask `follow` for one after the other.
        """
        return None

    def keep_states(self, layers: Sequence[int] = ()) -> None:
        """With `HIDDEN_STATES`: from now on keep the last hidden states of all that is read; with
        `LAYER_OUTPUTS` what these layers give, too, ascending from 1 on. Texts that are open already
        read what they hold once more. Raises UsageError for what is no layer of the model."""
        raise self._lacks("hidden states")

    def states(self, slot: int, layers: Sequence[int] = ()) -> torch.Tensor:
        """With `HIDDEN_STATES`: [cached tokens, hidden] of a text, or of layers; see `Drafter.observe_states`."""
        raise self._lacks("hidden states")

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """With `HIDDEN_STATES`: the model's embeddings [..., hidden] of ids int64 [...]."""
        raise self._lacks("hidden states")

    def word_table(self) -> WordTable | None:
        """With `HIDDEN_STATES`: where `embed` looks ids up; None where it does anything besides."""
        return None

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """With `HIDDEN_STATES`: weights [n, hidden] and biases [n] of the output head, for these
        tokens int64 [n] or for all of the vocabulary: scores are weights @ state + biases, before
        what a model does to them besides that keeps their order."""
        raise self._lacks("hidden states")

    def _lacks(self, what: str) -> UsageError:
        name = type(self).__name__
        return UsageError(f"{name} has no {what}: choose another method or target")


class Planner(Protocol):
    """Decides how much is guessed in each round. Whatever it decides, the text stays the same."""

    def add(self, key: int, drafter: Drafter, budget: int | None = None) -> None:
        """A text joins; it is called `key` from now on. budget: most nodes of its trees, where its
        owner has decided that; None leaves it to the planner."""
        ...

    def drop(self, key: int) -> None:
        """A text has ended or was given up."""
        ...

    def plan(self, proposals: Mapping[int, Propose]) -> dict[int, Tree]:
        """The trees of the next pass: of every text that takes part, by its key, the function
        that asks its drafter."""
        ...

    def prefill(self, rows: int, texts: int, tokens: int) -> int:
        """How many prompt tokens of so many `texts`, with `tokens` in all, may be read beside a
        pass of `rows` rows, so that the texts in it do not wait long; at least 1."""
        ...

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds of one pass."""
        ...


def check_capabilities(drafter: Drafter, target: Target) -> None:
    """Raises UsageError where `drafter` needs something that `target` does not offer."""
    missing = drafter.requires - target.capabilities
    if missing:
        raise UsageError(
            f"{type(drafter).__name__} needs {', '.join(sorted(missing))}, which "
            f"{type(target).__name__} does not offer: choose another method or target"
        )
