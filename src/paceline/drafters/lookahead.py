"""Lookahead decoding (Fu, Bailis, Stoica and Zhang 2024, "Break the Sequential Dependency of LLM
Inference Using Lookahead Decoding", arXiv 2402.02057, section 3).

Beside the text, the model refines a window: `window` columns of future tokens, each with the last
`level` - 1 levels of its Jacobi iteration. A pass makes every column one level longer. A column's
key and all levels after it are then an n-gram of `level` tokens, which goes into a pool, and the
oldest level is dropped. Phrases of the pool that begin where the text ends are the guesses.

    window=3, level=4: level 0 is b p q, root b first; two more levels follow each of them

    root b ─┬─ x1 ─ x2            column 0: the row of x2 says x3, which makes (b, x1, x2, x3)
            ├─ p ─┬─ y1 ─ y2      column 1: (p, y1, y2, y3)
            │     └─ q ─ z1 ─ z2  column 2: (q, z1, z2, z3)
            └─ … phrases that the pool has after b

    c comes next: level 0 is c y1 z1, followed by x2 x3, y2 y3 and z2 z3

In the window's mask, a column sees level 0 up to itself, and its own earlier levels. That is an
ordinary tree mask, so each row holds the model's scores after the tokens above it. Columns that
begin alike share nodes, as phrases do.

In the paper the window makes guesses, but its tokens are not guesses themselves. So its nodes are
shadows: the model reads their tokens, but they are never accepted. Accepting them would do no harm:
`accept_window` allows it; then phrases and window share nodes, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline.drafters.lookup import TextReader
from paceline.drafters.phrases import PhrasePool, phrase_tree
from paceline.drafters.settings import Settings, whole
from paceline.prefix import common_prefix
from paceline.protocols import SHADOW_TOKENS, TREES, SizedBy
from paceline.records import Round, TextStart
from paceline.scores import likeliest
from paceline.tree import EMPTY, SHADOWS, Tree

_MOST = 256


@dataclass(frozen=True)
class LookaheadSettings(Settings):
    """Settings of `Lookahead`.

    window: columns, 0 to 256 (the paper's W); with 0, only phrases that others or
    `pool_from_prompt` put into the pool are guessed.
    level: tokens of an n-gram, 2 to 256 (the paper's N).
    guesses: phrases that a pass checks, and that are kept after each token, >= 1 (the paper's G).
    pool_from_prompt: also put the n-grams of the prompt and of the generated text into the pool.
    accept_window: let tokens of the window be accepted, which the paper does not.
    history: keep the pool when another text begins. A text that continues the last one, and may be
    recorded, keeps pool and window.
    seed: for drawing the window's first tokens from the prompt.
    """

    window: int = whole(7, 0, _MOST)
    level: int = whole(5, 2, _MOST)
    guesses: int = whole(7, 1)
    pool_from_prompt: bool = False
    accept_window: bool = False
    history: bool = False
    seed: int = 0


class Lookahead(TextReader):
    """Guesses phrases that the target itself generated beside the text.

    pool: a shared pool of phrases; its owner has to clear it, and to replace it in texts that must
    leave nothing in it.
    readable: phrases with ids at or beyond it are left out, since the model cannot read them; a
    shared pool may hold another model's. None for no limit.

    If the budget is too small, the guesses shrink first, to one phrase, and then the window.
    """

    def __init__(
        self,
        settings: LookaheadSettings | None = None,
        *,
        pool: PhrasePool | None = None,
        readable: int | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        own = replace(settings or LookaheadSettings(), **changes)
        self._settings = own
        self.pool = PhrasePool(own.guesses) if pool is None else pool
        self._kept = self.pool if own.history and pool is None else None
        real = own.accept_window or not own.window
        self.requires = frozenset({TREES} if real else {SHADOW_TOKENS, TREES})
        # Rows of a window buy the guesses of later rounds; phrases alone can be cut anywhere.
        self.sized_by: SizedBy = "whole" if own.window else "nodes"
        self._mark = 0 if own.accept_window else SHADOWS
        self._readable = sys.maxsize if readable is None else readable
        self._keeps_pool = own.history or pool is not None
        # Columns of future tokens at consecutive positions, each from level 0 on, all with the same
        # number of levels. Level 0 of column 0 stands for the root, whatever its value.
        self._columns: list[list[int]] = []
        self._shown = 0  # columns of the last proposal

    def start(self, text: TextStart) -> None:
        """Begin with a new window, unless the text continues the last one. References are
        ignored."""
        if self._kept is not None:
            self.pool = self._kept if text.record else self._kept.copy()
        if common_prefix(self._text, text.context) < len(self._text):
            if not self._keeps_pool:
                self.pool.clear()
            self._text, self._columns, self._shown = [], [], 0
        if self._settings.window and not self._columns:
            draw = Random(self._settings.seed).choice  # noqa: S311 - no secret
            count = self._settings.window + self._settings.level - 2
            self._columns = [[draw(text.context)] for _ in range(count)]
        super().start(text)

    def propose(self, budget: int) -> Tree:
        """Phrases after the root, newest first, and as much of the window as fits."""
        known = self.pool.newest(self._text[-1])
        readable = [phrase for phrase in known if max(phrase) < self._readable]
        phrases = readable[: self._settings.guesses]
        if not self._settings.window:
            return phrase_tree(phrases).prune(budget)
        window = self._window_within(budget - (self._settings.level - 1))
        return Tree.of_paths(phrases).prune(budget - len(window)).graft(window).merge()

    def observe(self, round: Round) -> None:
        """Take the window's next level from its scored rows, and its n-grams into the pool."""
        if shown := self._shown:
            self._shown = 0  # until it is asked again
            ends = [round.tree.find(path) for path in self._paths()[:shown]]
            if any(end is not None for end in ends):
                best = likeliest(round.logits)  # copying some rows would take longer
                self._advance([None if end is None else best[end + 1] for end in ends])
        self._learn(round.path.tokens)

    def _window_within(self, room: int) -> Tree:
        """As many of the window's columns as fit into `room` nodes with all their levels."""
        paths = self._paths()
        still_to_fill = self._settings.level - 1 - len(self._columns[0])
        for count in range(len(paths), still_to_fill, -1):
            tree = Tree.of_paths(paths[:count])
            if len(tree) <= room:
                self._shown = count
                return tree
        self._shown = 0
        return EMPTY

    def _paths(self) -> list[list[int]]:
        """For each column, the tokens from the root to its last level, marked."""
        bottom = [column[0] for column in self._columns]
        return [
            [self._mark + token for token in (*bottom[1 : place + 1], *column[1:])]
            for place, column in enumerate(self._columns)
        ]

    def _advance(self, results: Sequence[int | None]) -> None:
        """Add the tokens that follow the last level of the first columns; None if unknown.

        While levels are missing, all columns gain one, or wait if one result is None. The next root
        takes the first column's place, so that one is dropped, as are columns beyond `results`.
        Later each column drops its own level 0; only one without a result waits. Its key and the
        phrase after it go into the pool.
        """
        if len(self._columns[0]) < self._settings.level - 1:
            known = [result for result in results if result is not None]
            if len(known) == len(results):
                pairs = zip(self._columns[1:], known[1:])
                self._columns = [[*column, result] for column, result in pairs]
            return
        self._columns[0][0] = self._text[-1]  # the root that the window followed
        for place, result in enumerate(results):
            if result is not None:
                key, *phrase = [*self._columns[place], result]
                self.pool.add(key, phrase)
                self._columns[place] = phrase

    def _learn(self, tokens: Sequence[int]) -> None:
        if self._settings.pool_from_prompt:
            self.pool.add_text(self._text, tokens, self._settings.level - 1)
        super()._learn(tokens)
