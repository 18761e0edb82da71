"""Chimera: a small draft model that sees the whole text (Zeng et al. 2024, arXiv 2402.15758).

An n-gram encoder reads the tokens that the target has not read yet, a full context encoder looks
from there at the target's own hidden states, and residual heads guess (see
`paceline.drafters.chimera_model`). Every head is asked behind the guesses of the one before, so a
tree grows level by level: of each level the `beam` likeliest nodes are gone on from.

    text … a, root b       head 0 behind b: c (0.6), d (0.3), e (0.05)
    beam 2                 head 1 behind c: f (0.5), …; behind d: f (0.2), …
    tree: root ─┬─ c ─ f   the likeliest paths of all, as many as the budget allows
                └─ d
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.head_configs import HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.level_tree import LevelTree
from paceline.drafters.parts import check_parts, find_parts
from paceline.drafters.settings import at_least
from paceline.drafters.trained_heads import ChimeraParts
from paceline.errors import UsageError
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, ROOT, Tree

if TYPE_CHECKING:
    import torch

    from paceline.drafters.chimera_levels import Levels
    from paceline.drafters.ngram_cache import CacheCounts, Encode, Ngram, NgramCache, State

__all__ = ["Chimera", "ChimeraSettings"]


@dataclass(frozen=True)
class ChimeraSettings:
    """Settings of `Chimera`.

    parts: a folder made by `paceline train chimera`, a hub id, or "" for those that come with this
    package.
    ranks: how many guesses behind a node are looked at.
    beam: nodes of each level that are gone on from; with 1 there is one chain with runners-up.
    Four, since layers take hardly longer for four rows than for one.
    least: only nodes with at least this chance to be accepted are: a level costs a pass of the
    drafter, some twentieths of a pass of the target.
    cache: n-grams whose states are kept in memory, 0 for none (section 4.1.1). On a CPU, where a
    draft is one call, they are those of prompts: guesses are encoded faster than looked up. dictionary: of how
    many common n-grams states are made beforehand, as far as the parts name any. spill: a file for
    states that leave memory, which other parts may use as well; "" forgets them. Drafters of a host
    share the store.
    weights: of the linear layers, see `HeadWeights`.

    Raises UsageError for a setting out of range; ModelError for a folder without such parts.
    """

    parts: str = ""
    ranks: int = 10
    beam: int = 4
    least: float = 0.15
    cache: int = 8192
    dictionary: int = 0
    spill: str = ""
    weights: HeadWeights = "fastest"

    def __post_init__(self) -> None:
        at_least(1, ranks=self.ranks)
        at_least(1, beam=self.beam)
        if not 0 <= self.least <= 1:
            raise UsageError(f"least must be a number from 0 to 1, got {self.least!r}")
        at_least(0, cache=self.cache)
        at_least(0, dictionary=self.dictionary)
        check_parts(ChimeraParts, self.parts)


class Chimera(Drafter):
    """Drafter with a trained draft model on the target's states.

    host: the model that it was trained for; it must show its hidden states.
    settings, changes: see `ChimeraSettings`; the latter are fields of it by name.

    Raises UsageError for a setting out of range or a file that cannot be used; ModelError where
    there are no such parts, or they are damaged or belong to another model.
    """

    requires = frozenset({HIDDEN_STATES})

    def __init__(self, host: Host, settings: ChimeraSettings | None = None, **changes: Any) -> None:
        # torch takes a while to import
        from paceline.drafters.chimera_levels import encoded, levels_of, restored
        from paceline.drafters.ngram_cache import NgramCache, last_ngram

        own = replace(settings or ChimeraSettings(), **changes)
        found = find_parts(ChimeraParts, own.parts, host.fingerprint)
        self.promise = found.promise
        self._model = found.open(host, own.weights)
        self._new_levels = partial(levels_of, self._model)
        encode: Encode = partial(encoded, self._model)
        self._order = found.config.order
        self._ngram: Callable[[Sequence[int]], Ngram] = partial(last_ngram, order=self._order)

        def store() -> NgramCache:
            beforehand = host.share(
                (NgramCache, id(self._model), own.dictionary),
                lambda: _made_beforehand(encode, found.common_ngrams(own.dictionary)),
            )
            if not own.spill:
                return NgramCache(encode, own.cache, beforehand)
            # Rounded weights make other states.
            encoder = f"{found.fingerprint()} {own.weights}"
            where = Path(own.spill), encoder, partial(restored, self._model)
            return NgramCache(encode, own.cache, beforehand, *where)

        # What one text has had encoded is there for the next one, and for those beside it.
        key = (NgramCache, id(self._model), own.cache, own.dictionary, own.spill)
        self._greens: NgramCache = host.learn(key, store)
        self._settings = own
        self._noise = DrawNoise(self._model, host.target.vocab_size)
        self._text: list[int] = []
        self._levels: Levels | None = None  # made for the first draft of a text
        self._seen: torch.Tensor | None = None

    @property
    def lookups(self) -> CacheCounts:
        """Where states of n-grams were found so far, by all who share the store."""
        return self._greens.counts

    def start(self, text: TextStart) -> None:
        """Begin with nothing read. References are not looked at."""
        self._text = list(text.context)
        self._noise = self._noise.for_text(text.sampler)
        self._levels = None
        self._seen = None

    def unread(self) -> int:
        """See `Drafter.unread`."""
        return len(self._text) - 1 - (self._levels.length if self._levels else 0)

    def see(self, states: torch.Tensor) -> None:
        """See `Drafter.see`. Nothing is done with them before a draft is wanted: a drafter that
        rests costs nothing."""
        self._seen = states

    def propose(self, budget: int) -> Tree:
        """The likeliest paths over all levels; empty until the target has read the prompt."""
        states = self._seen
        if states is None or not len(states) or len(states) != len(self._text) - 1 or budget < 1:
            return EMPTY
        if self._levels is None:
            self._levels = self._new_levels(len(self._text))
        levels = self._levels
        levels.noise = self._noise.rows(len(self._text), self._model.config.heads)
        # Of a prompt n-grams are looked up; what is new in a round is encoded in the draft's own call.
        fresh = len(states) - levels.length
        root = self._read(levels, states) if fresh > levels.most_fresh else None
        tree = levels.draft(self._text, states, budget, self._settings)
        if tree is not None:
            return tree
        return self._grown(levels, root or self._read(levels, states), budget)

    def observe(self, round: Round) -> None:
        """Go on with the text: the model itself learns nothing."""
        self._text.extend(round.path.tokens)

    def _read(self, levels: Levels, states: torch.Tensor) -> list[State]:
        """Take over what the target has read since the last draft; the root's green state."""
        known, read = levels.length, len(states)
        ends = range(known + 1, read + 2)  # the root's, too: what is missing is encoded together
        last = [self._text[max(0, end - self._order) : end] for end in ends]
        greens = self._greens.states([self._ngram(tokens) for tokens in last])
        levels.read(states, greens[:-1])
        return greens[-1:]

    def _grown(self, levels: Levels, greens: Sequence[State], budget: int) -> Tree:
        """The likeliest guesses of all levels. greens: the root's."""
        tree = LevelTree()
        # Nodes of a level by their numbers among the guesses, with the last tokens up to them, and
        # the number of each in the draft.
        level, above, drafted = [ROOT], [-1], dict[int, int]()
        paths = {ROOT: tuple(self._text[-self._order :])}
        levels.begin()
        for depth in range(self._model.config.heads):
            if depth:
                greens = self._greens.states([self._ngram(paths[node]) for node in level])
            tree.add(level, levels.grow(depth, greens, above, self._settings.ranks))
            for node in level:
                drafted[node] = len(drafted)
            level = tree.likeliest(self._settings.beam, self._settings.least)
            if not level or budget <= depth + 1:
                break
            paths = {node: (*paths[tree.parents[node]], tree.tokens[node]) for node in level}
            above = [drafted[tree.parents[node]] for node in level]
        return tree.best(budget)


def _made_beforehand(encode: Encode, common: torch.Tensor | None) -> dict[Ngram, State]:
    ngrams = [] if common is None else [tuple(ids) for ids in common.tolist()]
    return dict(zip(ngrams, encode(ngrams), strict=True)) if ngrams else {}
