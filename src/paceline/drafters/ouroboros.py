"""Ouroboros: phrases for a draft model, from it, and behind its drafts (Zhao et al. 2024, "Ouroboros:
Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding", arXiv 2402.13720).

A draft model drafts as in `Speculative`, with one pool of phrases that four parts fill and use:

1. the draft model drafts by Lookahead decoding: phrases of the pool are its guesses, and its window
   makes new ones (section 3.1);
2. phrases that begin where the draft ends make it longer at almost no cost (3.2);
3. what the target said along the rejected part of a draft becomes phrases (3.3);
4. the pool is kept from text to text (3.4).

    pool, behind c: (d, e), (f, g)
    text … a, root b     the draft model says c
    tree: root ─ c ─┬─ d ─ e
                    └─ f ─ g
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from paceline.drafters.host import Host, ModelChoice
from paceline.drafters.lookahead import Lookahead, LookaheadSettings
from paceline.drafters.phrases import MOST_PHRASES, PhrasePool
from paceline.drafters.settings import at_least
from paceline.drafters.speculative import DraftSettings, Speculative, open_draft
from paceline.drafters.verified_phrases import Verified, corrected, matching, refined
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import ROOT, Tree

__all__ = ["Ouroboros", "OuroborosSettings", "Verification"]

Verification = Literal["paper", "package", "none"]

# How likely a phrase's first token and each further one are by our own word; plans correct it. The
# newest phrase is the likeliest.
_FIRST, _NEXT = 0.4, 0.7


@dataclass(frozen=True)
class OuroborosSettings(DraftSettings):
    """Settings of `Ouroboros`, besides those of the draft model.

    drafting: phrases accelerate the draft model; else it says token by token.
    window, level, guesses: of its Lookahead decoding; `level` - 1 is the length of all phrases, and
    `guesses` how many are kept behind a token.
    lengthen: phrases that are hung behind a draft (the paper's K); 0 for none.
    verification: how phrases come from what the target says: where it goes along with the rejected
    draft ("paper", section 3.3), all that it says there ("package", the later published program's
    rule), or not at all.
    history: keep the pool when another text begins; all drafters of a host with the same settings
    share it. Else each has its own, emptied for every text.
    most: phrases in the pool.
    phrases: a file that they are read from at first, if it is there, and written to in the end.

    Raises UsageError for a value out of range.
    """

    drafting: bool = True
    window: int = LookaheadSettings.window
    level: int = LookaheadSettings.level
    guesses: int = LookaheadSettings.guesses
    lengthen: int = 3
    verification: Verification = "paper"
    history: bool = True
    most: int = MOST_PHRASES
    phrases: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inner()
        at_least(0, lengthen=self.lengthen)
        at_least(1, most=self.most)

    def inner(self) -> LookaheadSettings:
        """How phrases accelerate the draft model."""
        return LookaheadSettings(window=self.window, level=self.level, guesses=self.guesses)

    def of_draft(self) -> dict[str, Any]:
        """Those of the draft model, by name."""
        return {each.name: getattr(self, each.name) for each in fields(DraftSettings)}


class Ouroboros(Drafter):
    """Drafts with a smaller model and phrases.

    host: the model to draft for.
    settings, changes: see `OuroborosSettings`; the latter are fields of it by name.
    pool: to share it, in Python.

    Raises what `Speculative` does, and ModelError for a file that holds no phrases of this model.
    """

    def __init__(
        self,
        host: Host,
        settings: OuroborosSettings | None = None,
        *,
        pool: PhrasePool | None = None,
        **changes: Any,
    ) -> None:
        own = replace(settings or OuroborosSettings(), **changes)
        self.pool = _pool_of(host, own) if pool is None else _filled(pool, host, own.phrases)
        self._draft = _draft_of(host, own, self.pool)
        self._size = own.level - 1
        self._lengthen = own.lengthen
        self._verification = own.verification
        self._history = own.history
        self._root = 0
        self._chain: tuple[int, ...] = ()
        self._used: tuple[tuple[int, ...], ...] = ()
        if own.phrases:
            size, fingerprint = host.target.vocab_size, host.fingerprint
            weakref.finalize(self, self.pool.save, Path(own.phrases), size, fingerprint)

    @property
    def widths(self) -> Counter[int]:
        """Rows of a pass -> passes of the draft model so far, for reports."""
        return self._draft.widths

    def start(self, text: TextStart) -> None:
        """Begin a text, with the phrases of earlier ones unless `history` is off."""
        if not self._history:
            self.pool.clear()
        self._root = text.context[-1]
        self._draft.start(text)

    def resume(self, text: TextStart) -> None:
        """Go on with other last tokens; the pool stays."""
        self._root = text.context[-1]
        self._draft.resume(text)

    def stop(self) -> None:
        """See `Drafter.stop`."""
        self._draft.stop()

    def propose(self, budget: int) -> Tree:
        """The draft model's draft, and phrases behind its end."""
        tree = self._draft.propose(budget)
        nodes = _chain(tree)
        self._chain = tuple(tree.tokens[node] for node in nodes)
        self._used = self.pool.newest((self._root, *self._chain)[-1], self._lengthen)
        if self._used:
            tree = tree.graft(_weighed(self._used), at=nodes[-1] if nodes else ROOT)
        return tree.merge().prune(budget)

    def observe(self, round: Round) -> None:
        """Make phrases of what the target said along the draft, and let the draft model go on."""
        self._learn(round)
        self._root = round.path.tokens[-1]
        self._draft.observe(round)

    def _learn(self, round: Round) -> None:
        if self._verification == "none":
            return
        seen = Verified.of(round, self._root, self._chain, self._used)
        if self._verification == "package":
            added = refined(seen, self._size)
        elif seen.accepted:
            added = []
            for old, new in corrected(seen, self._size):
                self.pool.replace(seen.last, old, new)
        else:
            added = matching(seen, self._size)
        for key, phrase in added:
            self.pool.add(key, phrase)


def _pool_of(host: Host, own: OuroborosSettings) -> PhrasePool:
    """The pool of all drafters of the host with such phrases, or one of its own."""
    make = partial(_filled, PhrasePool(own.guesses, own.most), host, own.phrases)
    if not own.history:
        return make()
    # Phrases of another length, or of another file, are another pool.
    key = (PhrasePool, own.level, own.guesses, own.most, own.phrases)
    shared: PhrasePool = host.learn(key, make)
    return shared


def _filled(pool: PhrasePool, host: Host, phrases: str) -> PhrasePool:
    """The pool with the phrases of the file, if there is one."""
    if phrases and Path(phrases).exists():
        pool.load(Path(phrases), host.target.vocab_size, host.fingerprint)
    return pool


def _draft_of(host: Host, own: OuroborosSettings, pool: PhrasePool) -> Speculative:
    """The draft model, which drafts with the pool."""
    small = open_draft(host, ModelChoice(own.draft, own.device, own.dtype, own.weights))
    # What the target says goes into the pool as well, and may be no token of the draft model.
    size = small.target.vocab_size
    readable = size if small.tokens is None else min(size, small.tokens)
    inner = Lookahead(own.inner(), pool=pool, readable=readable) if own.drafting else "plain"
    return Speculative(host, inner=inner, **{**own.of_draft(), "draft": small})


def _chain(tree: Tree) -> list[int]:
    """Nodes of the draft: the first child of every node, from the root on."""
    nodes: list[int] = []
    while children := tree.children.get(nodes[-1] if nodes else ROOT):
        nodes.append(min(children.values()))
    return nodes


def _weighed(phrases: Sequence[Sequence[int]]) -> Tree:
    """Phrases, newest first, as one tree with weights."""
    tree = Tree.of_paths(phrases)
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(one[0] for one in phrases))}
    weights: list[float] = []
    for token, parent in zip(tree.tokens, tree.parents):
        if parent == ROOT:
            weights.append(_FIRST / (1 + ranks[token]))
        else:
            weights.append(_NEXT * weights[parent])
    return Tree(tree.tokens, tree.parents, tuple(weights))
