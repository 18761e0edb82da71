"""Ouroboros: a draft model with a pool of phrases (Zhao et al. 2024, "Ouroboros: Generating Longer
Drafts Phrase by Phrase for Faster Speculative Decoding", arXiv 2402.13720).

A draft model drafts as in `Speculative`, with one pool of phrases that four parts fill and use:

1. phrases of the pool are guesses for the draft model itself, and its outputs become phrases: by
   Lookahead decoding (section 3.1) or, without a window, as they are;
2. phrases that begin where the draft ends lengthen it at almost no cost (3.2), and others may
   follow each of its tokens;
3. what the target said along the rejected part of a draft becomes phrases (3.3);
4. the pool is kept from text to text (3.4).

    pool, after c: (d, e), (f, g)
    text … a, root b     the draft model says c
    tree: root ─ c ─┬─ d ─ e
                    └─ f ─ g
"""

from __future__ import annotations

import os.path
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline.drafters.host import Host
from paceline.drafters.lookahead import Lookahead, LookaheadSettings
from paceline.drafters.phrases import MOST_PHRASES, Phrase, PhrasePool, phrase_tree
from paceline.drafters.settings import whole
from paceline.drafters.speculative import Speculative, SpeculativeSettings
from paceline.drafters.verified_phrases import Verified, corrected, matching, refined
from paceline.errors import ModelError, UsageError
from paceline.protocols import Drafter
from paceline.records import Round, SourceRound, TextStart
from paceline.tree import EMPTY, ROOT, Tree

_INNER = "phrases"

_DRAFT, _PHRASES = 0, 1  # bits of `Tree.sources`
_UNASKED = SourceRound("draft", False, 0, 0.0), SourceRound("phrases", False, 0, 0.0)


@dataclass(frozen=True)
class OuroborosSettings(SpeculativeSettings):
    """Settings of `Ouroboros`, in addition to those of the draft model.

    inner: as there, but "" means "phrases" of the pool in a smaller model, or with a window; plain
    drafts token by token.
    window, level, guesses: of its Lookahead decoding; without a window only phrases are guessed.
    `level` - 1 is the length of phrases, and `guesses` how many are kept after a token.
    text, prompt: whether phrases are made of committed tokens and drafts, and of the prompt.
    lengthen: phrases to add after a draft (the paper's K) and, with `hang=all`, after each of its
    tokens; 0 for none.
    verification: which outputs of the target become phrases: those that agree with the rejected
    draft ("paper", section 3.3), all of them there ("package", the rule of the program published
    later), or "none".
    shortest: least tokens of a phrase from a rejected draft, by the paper's rule.
    history: keep the pool when another text begins; all drafters of a host with the same settings
    share it. Otherwise each has its own, emptied for every text.
    most: most phrases in the pool.
    phrases: a file to read phrases from, if it exists, and to write them to in the end; only with
    `history`.

    Raises UsageError for a value out of range, or an unknown `inner`.
    """

    window: int = 0
    level: int = LookaheadSettings.level
    guesses: int = LookaheadSettings.guesses
    text: bool = True
    prompt: bool = False
    lengthen: int = whole(3, 0)
    hang: Literal["end", "all"] = "end"
    verification: Literal["paper", "package", "none"] = "paper"
    shortest: int = whole(2, 1)
    history: bool = True
    most: int = whole(MOST_PHRASES, 1)
    phrases: str = ""

    _own_inner: ClassVar[str] = _INNER

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lookahead()
        if self.phrases and not self.history:
            raise UsageError(
                "without history the phrases of a file would be forgotten and then overwritten: "
                "leave out phrases= or history=false"
            )

    def inner_method(self, slow: bool) -> str:
        copied = self.is_copy and not self.window
        return super().inner_method(slow) if self.inner or copied else _INNER

    def lookahead(self) -> LookaheadSettings:
        """Settings of the Lookahead decoding that accelerates the draft model."""
        return LookaheadSettings(window=self.window, level=self.level, guesses=self.guesses)


class Ouroboros(Speculative):
    """Drafts with a smaller model and phrases.

    host: the model to draft for.
    pool: to share it, in Python.

    Raises what `Speculative` raises, and ModelError for a file without phrases of this model.
    """

    source_names = ("draft", "phrases")
    _settings: OuroborosSettings
    _inner: Lookahead | None  # where it drafts with the pool

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
        self._kept, self._inner = self.pool, None
        super().__init__(host, own)
        self._size = own.level - 1
        self._tail: list[int] = []  # of the text: where the next phrases may begin; last the root
        self._chain: tuple[int, ...] = ()
        self._used: tuple[Phrase, ...] = ()
        self._rounds = _UNASKED
        if own.phrases:
            size, fingerprint = host.target.vocab_size, host.fingerprint
            weakref.finalize(self, _save, self.pool, _place(own.phrases), size, fingerprint)

    def start(self, text: TextStart) -> None:
        """Begin a text, with the phrases of earlier ones unless `history` is off. One that must not
        be recorded leaves none."""
        if not self._settings.history:
            self._kept.clear()
        self.pool = self._kept if text.record else self._kept.copy()
        if self._inner is not None:
            self._inner.pool = self.pool
        self._begin(text, self._settings.prompt)
        super().start(text)

    def resume(self, text: TextStart) -> None:
        """Continue with other last tokens; the pool stays."""
        self._begin(text, False)
        super().resume(text)

    def propose(self, budget: int) -> Tree:
        """The draft model's draft, and phrases along it."""
        began = self._clock()
        draft = super().propose(budget)
        drafted = self._clock()
        nodes = draft.along([guess.token for guess in self._draft.guesses])
        self._chain = tuple(draft.tokens[node] for node in nodes)
        if self._settings.text:
            self.pool.add_text(self._tail, self._chain, self._size)
        tree = self._with_phrases(draft.marked(_DRAFT), nodes)
        added = len(tree) - len(draft)
        self._rounds = (
            SourceRound("draft", bool(draft), len(draft), drafted - began),
            SourceRound("phrases", bool(added), added, self._clock() - drafted),
        )
        return tree.merge().prune(budget) if len(tree) and budget > 0 else EMPTY

    def report(self) -> tuple[SourceRound, ...]:
        found, self._rounds = self._rounds, _UNASKED
        return found

    def observe(self, round: Round) -> None:
        """Make phrases of what the target said along the draft, and tell the draft model."""
        self._learn_phrases(round)
        said = round.path.tokens
        if self._settings.text:
            self.pool.add_text(self._tail, said, self._size)
        self._tail = [*self._tail, *said][-self._size :]
        super().observe(round)

    def _drafter_of(self, small: Host) -> Drafter:
        """See `Speculative`; also `Lookahead` with the pool."""
        if self._settings.inner_method(slow=False) != _INNER:
            return super()._drafter_of(small)
        # The target's outputs enter the pool, too, and may not be tokens of the draft model.
        size = small.target.vocab_size
        readable = size if small.tokens is None else min(size, small.tokens)
        looks = Lookahead(self._settings.lookahead(), pool=self.pool, readable=readable)
        self._inner = looks
        return looks

    def _begin(self, text: TextStart, learn: bool) -> None:
        self._chain, self._used = (), ()
        if learn:
            self.pool.add_text((), text.context, self._size)
        self._tail = list(text.context[-self._size :])

    def _with_phrases(self, tree: Tree, nodes: Sequence[int]) -> Tree:
        """The tree with phrases after the draft's end, or after each of its tokens."""
        along = list(zip((ROOT, *nodes), (self._tail[-1], *self._chain)))
        for node, token in along if self._settings.hang == "all" else along[-1:]:
            self._used = self.pool.newest(token, self._settings.lengthen)
            if self._used:
                tree = tree.graft(phrase_tree(self._used).marked(_PHRASES), at=node)
        return tree

    def _learn_phrases(self, round: Round) -> None:
        rule, size = self._settings.verification, self._size
        if rule == "none":
            return
        seen = Verified.of(round, self._tail[-1], self._chain, self._used)
        paper = rule == "paper"
        found = matching(seen, size, self._settings.shortest) if paper else refined(seen, size)
        for key, phrase in found:
            self.pool.add(key, phrase)
        for old, new in corrected(seen, size) if paper else ():
            self.pool.replace(seen.last, old, new)


def _pool_of(host: Host, own: OuroborosSettings) -> PhrasePool:
    """The pool that the host's drafters with such phrases share, or one of its own."""
    make = partial(_filled, PhrasePool(own.guesses, own.most), host, own.phrases)
    # Phrases of another length or file need another pool.
    key = (PhrasePool, own.level, own.guesses, own.most, own.phrases)
    return host.learn(key, make) if own.history else make()


def _filled(pool: PhrasePool, host: Host, phrases: str) -> PhrasePool:
    """The pool, with the phrases of the file if it exists."""
    if not phrases:
        return pool
    path = _place(phrases)
    if os.path.exists(path):
        pool.load(path, host.target.vocab_size, host.fingerprint)
    elif not os.path.isdir(path.parent):
        raise ModelError(f"there is no folder {path.parent} for the phrases: create it first")
    return pool


def _place(phrases: str) -> Path:
    """The file, wherever the program works later. Unlike `Path.expanduser`, this does not fail for
    an unknown user."""
    return Path(os.path.abspath(os.path.expanduser(phrases)))


def _save(pool: PhrasePool, path: Path, vocab_size: int, fingerprint: str) -> None:
    """Save the pool. Runs as a finaliser, so no caller could catch an error."""
    try:
        pool.save(path, vocab_size, fingerprint)
    except ModelError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=1)
