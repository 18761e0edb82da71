"""The contracts on one screen: what the loop expects of a drafter, a target, a planner, a matcher.

Everything optional has a default here and is declared: a drafter names what it needs of a target in
`requires`, a target what it offers in `capabilities`.
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

# Capabilities of a target.
TREES = "trees"
"""It scores any tree; other targets are given chains only."""
VIRTUAL_TOKENS = "virtual_tokens"
"""It reads ids at or beyond its vocabulary as the embeddings of `Target.add_virtual_tokens`."""
HIDDEN_STATES = "hidden_states"
"""It has `Target.states`, `embed` and `output_head`."""
LAYER_OUTPUTS = "layer_outputs"
"""It keeps outputs of single layers, too."""
SHADOW_TOKENS = "shadow_tokens"
"""It reads trees as in `Tree.as_read`, shadows as their tokens."""
CHAINS = "chains"
"""It has `Target.follow`, which generates token by token at little more than passes cost."""
CAPABILITIES = frozenset(
    {TREES, VIRTUAL_TOKENS, HIDDEN_STATES, LAYER_OUTPUTS, SHADOW_TOKENS, CHAINS}
)

LAST_STATES = 0
"""The number of the states that the output head reads, among those of layers, from 1 up."""

SizedBy = Literal["nodes", "whole"]
"""How a planner may size a drafter's trees: node by node, or only the whole tree or none, because
rows that cannot be accepted (virtual ids) buy the guesses of the next round."""

Propose = Callable[[int], Tree]
"""Budget -> a text's tree of at most that many nodes."""


class Drafter(ABC):
    """Proposes continuations of one text at a time. No proposal can change the text.

    Calls for a text: `start`; in each round `offer_states`, `propose`, `complete`, `report` and
    `observe`; at the end `stop`. A planner may skip the first three in a round. A subclass must
    define `start`, `propose` and `observe`.

    requires: capabilities it needs of the target. sized_by: how a planner may size its trees.
    source_names: names of the sources whose guesses it merges, in the order of the bits of
    `Tree.sources`; () if it does not say which source proposed a node.
    layers: whose outputs it wants as states, see `Target.keep_states`.
    promise: extra tokens per round, as measured when its parts were made; 0 if unknown.
    passive: it never guesses, and a constraint must not guess for it either.
    Settings: for a class named as a method from outside the package: a frozen dataclass of its
    keyword arguments, with a default for each; None if it takes none.
    """

    requires: frozenset[str] = frozenset()
    sized_by: SizedBy = "nodes"
    source_names: tuple[str, ...] = ()
    layers: tuple[int, ...] = (LAST_STATES,)
    promise: float = 0.0
    passive: bool = False
    Settings: ClassVar[type[Any] | None] = None

    @abstractmethod
    def start(self, text: TextStart) -> None:
        """Begin a text."""

    @abstractmethod
    def propose(self, budget: int) -> Tree:
        """Guess what follows the last committed token: a tree of at most `budget` nodes, perhaps
        empty."""

    def complete(self, tree: Tree) -> Tree:
        """Add rows that are not guesses to what the planner left of the tree from `propose`."""
        return tree

    @abstractmethod
    def observe(self, round: Round) -> None:
        """Learn from a verified round, rejected nodes included."""

    def resume(self, text: TextStart) -> None:
        """Continue the text as `text.context`, whose last tokens may differ from those observed, as
        a draft model's do after every rejection. Override it to keep what is still useful."""
        self.start(text)

    def observe_states(self, states: torch.Tensor) -> None:
        """Take the text's hidden states, before each `propose`, if `HIDDEN_STATES` is required.

        states: [n, hidden of each layer], the outputs of `layers`, side by side, for the text's
        first n tokens. In a text's first round n may be any number, since the target may have read
        nothing yet; later it is all tokens but the last, the root. The tensor is a view, which the
        next pass overwrites.
        """

    def offer_states(self, states: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        """Fetch the states of `layers` and call `observe_states` with them.

        The loop calls this method, not `observe_states`. A drafter that does not always need the
        states may override it and keep the function until its `propose` returns.
        """
        self.observe_states(states(self.layers))

    def stop(self) -> None:
        """End the text, finished or not: release what was held for it alone."""

    def unread(self) -> int:
        """How many tokens of the text must be read before the next tree, and so make it slower; 0
        if that time is negligible."""
        return 0

    def waits(self) -> bool:
        """Whether it cannot guess yet, as the text has had no pass."""
        return False

    def report(self) -> tuple[SourceRound, ...]:
        """What each of `source_names` did for the round, asked before `observe`; () if none."""
        return ()


class Target(ABC):
    """Runs the model whose output must not change; owns KV cache, masks and positions.

    A text has a slot from `open` to `close`. Tokens that were read are in the cache; the others are
    pending. The last pending token is the root, the parent of a tree's first nodes.

    vocab_size: ids below this can be drawn; ids at or above it are virtual.
    max_context: most tokens, prompt included, that the model can attend to; None if unlimited.
    capabilities: the optional features it offers, e.g. `TREES`.
    """

    vocab_size: int
    max_context: int | None
    capabilities: frozenset[str]

    @abstractmethod
    def open(self, context: Sequence[int]) -> int:
        """Give a text of at least one token a slot. The longest prefix that it shares with another
        text, open or closed, need not be read again if it is still cached."""

    @abstractmethod
    def close(self, slot: int) -> None:
        """End the text of `slot`. Its cache may be kept for texts with the same prefix."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what was kept of closed texts."""

    @abstractmethod
    def pending(self, slot: int) -> int:
        """How many tokens before the root are still to be read."""

    @abstractmethod
    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Run one pass over every node of every tree, by slot; other slots take no part.

        prefill: other slots, and how many of their pending tokens to read at most in the same pass.

        Returns, per tree, raw logits [len(tree) + 1, vocab_size]: row 0 is the root's, row i + 1
        node i's. Pending tokens of a text with a tree are read first.
        """

    @abstractmethod
    def commit(self, paths: Mapping[int, Path]) -> None:
        """Keep the accepted nodes of the last `score` in the cache, by slot, and drop the others.
        The last token of each path is the new root."""

    @abstractmethod
    def describe(self) -> TargetInfo:
        """What it is and where it runs, for reports and stored measurements."""

    def prefill(self, slot: int, most: int) -> int:
        """Read at most `most` pending tokens in a pass of their own; returns how many are left."""
        self.score({}, {slot: most})
        return self.pending(slot)

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """With `VIRTUAL_TOKENS`: add embeddings [count, hidden], in the form of the model's
        `inputs_embeds`, and return the first id; the others follow. Embeddings that are known
        already keep their ids, so drafters with parts of their own can share a target.

        Raises UsageError if they do not fit the model.
        """
        raise self._lacks("virtual tokens")

    def follow(self, slot: int, kept: int, tokens: Sequence[int]) -> TokenScores:
        """With `CHAINS`: keep the first `kept` tokens of a text and append `tokens`; read all that
        is not in the cache yet, the last token included, and score the next token.

        The resulting text has at least one token. A slot that was followed can only be followed
        until it is closed. The scores are a view, which the next pass overwrites.
        """
        raise self._lacks("chains")

    def generate_chain(
        self, slot: int, kept: int, tokens: Sequence[int], wanted: ChainRequest
    ) -> ChainFound | None:
        """With `CHAINS`: like `follow`, then more passes, each of which reads the likeliest token
        that the pass before it found.

        Returns None if that is no faster than one `follow` per token.
        """
        return None

    def keep_states(self, layers: Sequence[int] = (LAST_STATES,)) -> None:
        """With `HIDDEN_STATES`: from now on keep `LAST_STATES` of everything read, or with
        `LAYER_OUTPUTS` the outputs of these layers, ascending, beside what is kept already. Texts
        already open are read again. Raises UsageError for a layer that the model does not have."""
        raise self._lacks("hidden states")

    def states(self, slot: int, layers: Sequence[int] = (LAST_STATES,)) -> torch.Tensor:
        """With `HIDDEN_STATES`: a text's states of these layers [cached tokens, hidden of each]."""
        raise self._lacks("hidden states")

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """With `HIDDEN_STATES`: the model's embeddings [..., hidden] of ids int64 [...]."""
        raise self._lacks("hidden states")

    def word_table(self) -> WordTable | None:
        """With `HIDDEN_STATES`: the table that `embed` reads and scales; None if it does more."""
        return None

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """With `HIDDEN_STATES`: weights [n, hidden] and biases [n] of the output head, for these
        tokens int64 [n] or the whole vocabulary. Scores are weights @ state + biases, but for a cap
        that the model may add, which preserves their order."""
        raise self._lacks("hidden states")

    def _lacks(self, what: str) -> UsageError:
        return UsageError(f"{type(self).__name__} has no {what}: choose another method or target")


class Planner(ABC):
    """Decides how much is guessed in each round. No decision can change a text."""

    def add(self, key: int, drafter: Drafter, budget: int | None = None) -> None:
        """Add a text. budget: most nodes of its trees; None leaves that to the planner."""

    def drop(self, key: int) -> None:
        """Forget a text, finished or not."""

    @abstractmethod
    def plan(self, proposals: Mapping[int, Propose], ahead: int = 0) -> dict[int, Tree]:
        """Choose the trees of the next pass. proposals: ask the drafter of each text in it. ahead:
        tokens that it reads before the roots of these texts."""

    @abstractmethod
    def prefill(self, rows: int, texts: int, tokens: int) -> int:
        """How many prompt tokens, at least 1, to read in a pass of `rows` rows without making its
        texts wait long. `texts` prompts are waiting, with `tokens` tokens in all."""

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds of one pass."""


class Matcher(Protocol):
    """One text's position in its constraint, e.g. a grammar. Errors end only that text."""

    def copy(self) -> Matcher:
        """An independent matcher at the same position."""

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next, bool [vocabulary] on the CPU; at least one is True."""

    def push(self, token: int) -> bool:
        """Advance by a drawn token; True if the text is complete and nothing can follow."""

    def forced(self) -> list[int]:
        """The tokens that must come next, whatever the model says; often none."""

    def likely(self) -> tuple[int, float] | None:
        """A likely next token and its estimated chance in (0, 1); None if nothing is known."""

    def enter(self, token: int) -> bool:
        """Advance tentatively by a token; False, without moving, if it is not allowed."""

    def leave(self, count: int) -> None:
        """Undo the last `count` tentative steps."""


def check_capabilities(drafter: Drafter, target: Target) -> None:
    """Raises UsageError if `drafter` needs a capability that `target` does not offer."""
    if missing := drafter.requires - target.capabilities:
        raise UsageError(
            f"{type(drafter).__name__} needs {', '.join(sorted(missing))}, which "
            f"{type(target).__name__} does not offer: choose another method or target"
        )
