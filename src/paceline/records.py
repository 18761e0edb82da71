"""Values passed between packages: starts of texts, paths, rounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.tree import Tree

if TYPE_CHECKING:
    import torch

    from paceline.sampling import Sampler

FinishReason = Literal["eos", "stop", "length", "interrupted", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token and the likeliest in its place, best first, each with its log-probability
    under softmax(raw logits), before anything that a sampler or constraint does."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TextStart:
    """What a drafter is told of a text when it starts or resumes.

    context: all committed tokens, at least one.
    references: texts that it may resemble.
    sampler: draws the text's tokens; None is greedy decoding. A drafter that draws with the same
    noise is right more often; it must use `Sampler.coupled`, never this sampler itself.
    key: of the text in its batch, as in `Round.key`.
    room: most tokens still to come.
    record: whether its tokens may become guesses for later texts.
    """

    context: Sequence[int]
    references: Sequence[Sequence[int]] = ()
    sampler: Sampler | None = None
    key: int = 0
    room: int = sys.maxsize
    record: bool = True


@dataclass(frozen=True)
class TargetInfo:
    """What a target is and where it runs.

    name: of the model or its class. device: as torch writes it. dtype: e.g. "float32". weights:
    their format, e.g. "packed". weight_bytes: bytes of weights that one pass must read, which set
    the floor of its cost; 0 if unknown. report: more facts for reports, JSON values.
    """

    name: str
    device: str = "cpu"
    dtype: str = "unknown"
    weights: str = "native"
    weight_bytes: int = 0
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WordTable:
    """A model's embeddings [count, hidden], as the C library reads them.

    format: of `enum pl_format`, or of `enum pl_words`. address: of the first embedding. held: the owner
    of the memory. scale: by which the model multiplies them.
    """

    format: int
    address: int
    count: int
    hidden: int
    held: object
    scale: float = 1.0


@dataclass(frozen=True)
class Path:
    """What one round commits: the accepted nodes, and the tokens that plain decoding would produce.

    nodes: accepted tree nodes, from a child of the root downwards.
    tokens: their tokens and one more, the bonus token, which becomes the next root. If the text
    ends inside the accepted path, the last token is the one that ended it. So there is always
    exactly one token more than nodes, and the cache holds all but that token.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.nodes) + 1:
            raise ValueError(f"{len(self.nodes)} nodes need one token more, got {self.tokens}")


class Seconds(NamedTuple):
    """Wall-clock time of a round by part. In a batch, a text's share: of the target's time by rows,
    of the rest an equal part. The first round's `target` includes all passes that read the
    prompt."""

    draft: float = 0.0
    target: float = 0.0
    commit: float = 0.0


_UNTIMED = Seconds()


class SourceRound(NamedTuple):
    """What one source of a drafter did for a round; the i-th is bit i of `Tree.sources`.

    asked: whether it was asked. proposed: its nodes, before the tree was cut. seconds: its time
    since the last round. settled: the drafter itself decides whether that time pays, so the planner
    need not.
    """

    name: str
    asked: bool
    proposed: int
    seconds: float
    settled: bool = False


@dataclass(frozen=True)
class Round:
    """One draft, one target pass, one commit.

    key: the text's, see `Batch.add`.
    logits: [len(tree) + 1, vocabulary], the target's raw logits; row 0 belongs to the root and
    row i + 1 to node i. Only the drafter sees them in a session: its streams get none.
    prefill: the pass also read a prompt, or a piece of one: the text's own in its first round.
    first: it is the text's first round. begin: how many tokens of the output come before it.
    sources: what each source of the drafter did, if it has any.
    logprobs: of the path's tokens, if requested.
    vocab_size: of the target; nodes with ids at or beyond it are virtual.
    room: most guesses that the text had room for.
    """

    key: int
    tree: Tree
    logits: torch.Tensor
    path: Path
    prefill: bool = False
    first: bool = False
    seconds: Seconds = _UNTIMED
    vocab_size: int = sys.maxsize
    sources: tuple[SourceRound, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    begin: int = 0
    room: int = sys.maxsize

    def with_(self, **fields: Any) -> Round:
        """A copy with these fields changed. Every round needs it, and it takes a fifth of the time
        of `dataclasses.replace`."""
        other = object.__new__(Round)
        vars(other).update(vars(self), **fields)
        return other

    @property
    def guess_depths(self) -> list[int]:
        """Depths of the nodes that could be accepted: all but virtual ones."""
        pairs = zip(self.tree.depths, self.tree.tokens)
        return [depth for depth, token in pairs if token < self.vocab_size]

    @property
    def settled_seconds(self) -> float:
        """Drafting time that the planner need not judge: that of settled sources."""
        return sum(source.seconds for source in self.sources if source.settled)

    def proposers(self, node: int) -> tuple[str, ...]:
        """Names of the sources that proposed a node; () if unknown."""
        by = 0 if self.tree.sources is None else self.tree.sources[node]
        return tuple(one.name for place, one in enumerate(self.sources) if by >> place & 1)

    def owed_to(self, source: int) -> int:
        """How many accepted nodes would be missing without the source of this number: the first
        that only it proposed, and all after that."""
        if self.tree.sources is None:
            return 0
        alone = [self.tree.sources[node] == 1 << source for node in self.path.nodes]
        return len(alone) - alone.index(True) if True in alone else 0

    def rows_owed_to(self, source: int) -> tuple[int, float]:
        """How many nodes would be missing without the source of this number, those that only it
        proposed and their descendants, and the sum of their weights."""
        tree, sources, alone = self.tree, self.tree.sources or (), 1 << source
        if alone not in sources:
            return 0, 0.0
        owed: list[bool] = []
        for parent, by in zip(tree.parents, sources):
            owed.append(by == alone or (parent >= 0 and owed[parent]))
        return sum(owed), sum(compress(tree.weights or (), owed))
