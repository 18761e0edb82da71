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
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline.drafters.host import Host, ModelChoice
from paceline.drafters.lookahead import Lookahead
from paceline.drafters.phrases import MOST_PHRASES, PhrasePool
from paceline.drafters.settings import Tried, at_least
from paceline.drafters.speculative import Speculative, open_draft
from paceline.drafters.verified_phrases import Verified, corrected, matching, refined
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import ROOT, Tree

__all__ = ["Ouroboros", "Verification"]

Verification = Literal["paper", "package", "none"]

# How likely a phrase's first token and each further one are by our own word; plans correct it. The
# newest phrase is the likeliest.
_FIRST, _NEXT = 0.4, 0.7
# Settings of the draft model's Lookahead decoding.
_WINDOW = {"window", "level", "guesses"}


class Ouroboros(Drafter):
    """Drafts with a smaller model and phrases.

    draft, length, confidence, branches, budget, device, dtype, weights: see `Speculative`.
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
    pool: to share it, in Python.

    Raises what `Speculative` does, and ModelError for a file that holds no phrases of this model.
    """

    # The paper has one number for window and guesses, and looks at gamma, W, the length of phrases
    # and K in this order (table 11); its windows have 13 to 20 columns, for GPUs.
    tried: ClassVar[Tried] = {
        ("length",): (0, 2, 4, 6, 9, 12),
        ("window", "guesses"): (3, 7, 12, 16),
        ("level",): (3, 4, 5, 7),
        ("lengthen",): (0, 1, 3, 5),
        ("drafting",): (True, False),
    }

    def __init__(
        self,
        host: Host,
        draft: Any = "",
        drafting: bool = True,
        window: int = 7,
        level: int = 5,
        guesses: int = 7,
        lengthen: int = 3,
        verification: Verification = "paper",
        history: bool = True,
        length: int = 0,
        confidence: float = 0.0,
        branches: int = 1,
        budget: int = 0,
        most: int = MOST_PHRASES,
        phrases: str = "",
        device: str = "",
        dtype: str = "",
        weights: str = "",
        *,
        pool: PhrasePool | None = None,
    ) -> None:
        self.check(window=window, level=level, guesses=guesses, lengthen=lengthen)
        file = Path(phrases) if phrases else None
        own = partial(_filled, PhrasePool(guesses, most) if pool is None else pool, host, file)
        # Phrases of another length, or of another file, are another pool.
        key = (PhrasePool, level, guesses, most, phrases)
        self.pool: PhrasePool = host.learn(key, own) if history and pool is None else own()
        choice = ModelChoice(draft, device, dtype, weights)
        small = open_draft(host, choice)
        # What the target says goes into the pool as well, and may be no token of the draft model.
        size = small.target.vocab_size
        readable = size if small.tokens is None else min(size, small.tokens)
        inner = Lookahead(window, level, guesses, pool=self.pool, readable=readable)
        self._draft = Speculative(
            host, small, inner if drafting else "plain", length, confidence, branches, budget
        )
        self._size = level - 1
        self._lengthen = lengthen
        self._verification = verification
        self._history = history
        self._root = 0
        self._chain: tuple[int, ...] = ()
        self._used: tuple[tuple[int, ...], ...] = ()
        if file is not None:
            size, fingerprint = host.target.vocab_size, host.fingerprint
            weakref.finalize(self, self.pool.save, file, size, fingerprint)

    @staticmethod
    def check(**settings: Any) -> None:
        """Check the settings that are given, as far as that is possible without a model; raises as
        the constructor does."""
        Lookahead(**{name: settings[name] for name in _WINDOW & settings.keys()})
        at_least(0, lengthen=settings.get("lengthen", 0))
        at_least(1, most=settings.get("most", 1))
        Speculative.check(**settings)

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


def _filled(pool: PhrasePool, host: Host, file: Path | None) -> PhrasePool:
    """The pool with the phrases of the file, if there is one."""
    if file is not None and file.exists():
        pool.load(file, host.target.vocab_size, host.fingerprint)
    return pool


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
