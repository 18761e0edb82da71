"""Auto: one tree from everything that can guess.

Lookups in earlier text cost next to nothing and are asked every round: the first one, and of the
others those that know texts besides the one being written. Their guesses are united in one tree,
whose nodes record who proposed them. Methods that take time, trained heads and draft models, are
asked where that pays, see `CostlySources`, and the lookups once more for what follows.

    text … x y x y x, root x      anpd: y (0.6) - x (0.4)       medusa: y (0.7), z (0.2)
    tree: root ─┬─ y ─ x          y claims 0.88, by both: wrong only if both are
                └─ z ─ w          z by medusa; after it anpd knows w

Lookups in the same text are not independent opinions, so the larger of their claims counts. How far
to trust each set of sources is up to the planner, which learns it from what comes true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from time import perf_counter

import torch

from paceline.drafters.auto_sources import AutoSettings, nothing_known, open_sources
from paceline.drafters.costly_sources import CostlySources
from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.ppd_source import PpdSource, RowSources
from paceline.drafters.united_guesses import unite
from paceline.errors import UsageError
from paceline.planning.sizing import Used
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Round, SourceRound, TextStart
from paceline.tree import EMPTY, ROOT, Tree

_LEAVES, _CONTINUED = 2, 6  # ends of costly guesses to continue from, and most nodes to add to each


class Auto(Drafter):
    """Unites the guesses of several drafters.

    sources: drafters by name. `LookupDrafter`s are asked every round, the others where that pays.
    known: what is known about asking them; None for nothing yet.
    clock: seconds.

    Raises UsageError for a drafter whose trees must stay whole: they cannot be united.
    """

    def __init__(
        self,
        sources: Mapping[str, Drafter],
        known: CostlySources | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        for name, source in sources.items():
            if source.sized_by != "nodes":
                raise UsageError(f"{name} cannot be a source of auto: its trees must stay whole")
        self.source_names = tuple(sources)
        self.requires = frozenset().union(*(source.requires for source in sources.values()))
        self._sources = tuple(sources.values())
        on_states = [each for each in sources.values() if HIDDEN_STATES in each.requires]
        self.layers = tuple(sorted({layer for each in on_states for layer in each.layers}))
        self._states: Callable[[tuple[int, ...]], torch.Tensor] | None = None
        named = list(enumerate(self._sources))
        self._cheap = {place: each for place, each in named if isinstance(each, LookupDrafter)}
        self._consulted = self._cheap  # in this text
        rows = {place: source for place, source in named if isinstance(source, PpdSource)}
        self._costly = {place: each for place, each in named if place not in {*self._cheap, *rows}}
        self._judged = frozenset(range(len(named))) - {*rows, *islice(self._cheap, 1)}
        alike = sum(1 << place for place, each in self._cheap.items() if each.reads_text)
        self._united = unite(alike)
        self._known = known or nothing_known(sources)
        self._rows = RowSources(rows, self.source_names, self._known)
        self._clock = clock
        self._text: list[int] = []
        self._start = TextStart(self._text)
        self._room = 0
        self._lags = False  # whether lookups have missed part of the text
        # Of the last tree: when it was requested, when it was ready, its budget and its nodes.
        self._wanted, self._drafted, self._budget, self._offered = 0.0, 0.0, 0, 0
        self._used, self._is_cut = Used(), False  # nodes of its trees, and whether any was cut
        self._was_asked = False  # in this round
        self._forget_round()
        self._seconds = [0.0] * len(self._sources)
        self._idle = [  # of sources that were not asked and did nothing
            SourceRound(name, False, 0, 0.0, place not in self._cheap)
            for place, name in enumerate(sources)
        ]

    @classmethod
    def on(cls, host: Host | None, settings: AutoSettings) -> Auto:
        """A drafter with the sources that exist for a host; without one, those that need none."""
        sources = open_sources(settings.sources, settings.without, host)
        if host is None:
            return cls(sources)
        # What costly sources were worth in one text is known in the next.
        if (Auto, settings) not in host.worth:
            host.worth[Auto, settings] = nothing_known(sources, host)
        return cls(sources, host.worth[Auto, settings].for_text(), host.clock)

    def start(self, text: TextStart) -> None:
        """Begin a text with all sources."""
        self._begin(text)
        self._start = replace(text, context=self._text[:])
        self._known.begin()
        for source in self._sources:
            source.start(text)
        ready = {place: each for place, each in self._cheap.items() if each.knows_more}
        self._consulted = dict(islice(self._cheap.items(), 1)) | ready

    def resume(self, text: TextStart) -> None:
        """Resume the text with the sources in use."""
        self._begin(text)
        for sources in (self._costly, self._rows.sources, self._consulted):
            for source in sources.values():
                source.resume(text)

    def offer_states(self, states: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        """Keep the states for sources that want them when asked."""
        self._states = states

    def stop(self) -> None:
        """Let lookups catch up with the text, then release it in all sources."""
        with ExitStack() as last:  # an error in one leaves none of the others open
            for source in reversed(self._sources):
                last.callback(source.stop)
            if self._costly and self._said:
                self._known.ended(self._said)
            if self._said and (self._lags or len(self._consulted) < len(self._cheap)):
                self._catch_up(self._cheap)

    def propose(self, budget: int) -> Tree:
        """The likeliest nodes of all sources asked, by their own estimates. Where trees are cut, a
        source is asked for no more nodes than may be used."""
        if self._was_asked:  # by an earlier call for the same round
            self._forget_round()
        self._budget = budget
        if budget < 1:
            return EMPTY
        self._wanted, self._was_asked = self._clock(), True
        if self._lags:
            self._catch_up(self._consulted)
        self._united.clear()
        each = min(budget, self._used.enough) if self._is_cut else budget
        self._look_up(each)
        for place in self._rows.bought:
            self._add(place, self._rows.sources[place].propose(each), self._clock())
        if self._costly:
            self._ask_costly(each)
        tree = self._united.tree(budget)
        self._drafted, self._offered = self._clock(), len(tree)
        return tree

    def complete(self, tree: Tree) -> Tree:
        """Add rows that buy guesses for the next round, where these are worth it."""
        began = self._clock()
        self._is_cut = self._is_cut or len(tree) < self._offered
        self._used.scored(len(tree))
        tree, asked = self._rows.add_to(tree, self._united.sure, self._budget)
        spent = self._clock() - began
        self._drafted += spent
        for place in asked:
            self._proposed.setdefault(place, 0)
            self._seconds[place] += spent
            self._known.took(self.source_names[place], 1e3 * spent)
        return tree

    def report(self) -> tuple[SourceRound, ...]:
        rounds, proposed = list(self._idle), self._proposed
        for place, spent in enumerate(self._seconds):
            if spent or place in proposed:
                name, asked = self.source_names[place], place in proposed
                nodes, settled = proposed.get(place, 0), place not in self._cheap
                rounds[place] = SourceRound(name, asked, nodes, spent, settled)
        self._seconds = [0.0] * len(rounds)
        return tuple(rounds)

    def observe(self, round: Round) -> None:
        """Tell the sources what was committed, and judge what asking them was worth."""
        self._text += round.path.tokens
        self._room -= len(round.path.tokens)
        self._begun = True
        if self._was_asked and (self._judged or self._rows.sources):
            self._judge(round)
        self._lags = self._lags or not self._was_asked
        self._forget_round()
        if not self._lags:
            self._tell(self._consulted, round)
        self._tell(self._costly, round)
        self._rows.judge(round)
        self._tell(self._rows.sources, round)

    def _tell(self, sources: Mapping[int, Drafter], round: Round) -> None:
        began = self._clock()
        for place, source in sources.items():
            source.observe(round)
            now = self._clock()
            self._seconds[place] += now - began
            began = now

    def _begin(self, text: TextStart) -> None:
        self._text, self._room, self._lags = list(text.context), text.room, False
        self._begun = False  # it has had no pass
        self._used, self._is_cut = Used(), False
        self._rows.begin()
        self._forget_round()

    def _catch_up(self, lookups: Mapping[int, Drafter]) -> None:
        """Tell lookups what was committed while they were not asked."""
        text = replace(self._start, context=self._text, room=self._room)
        for lookup in lookups.values():
            lookup.resume(text)
        self._lags = False

    @property
    def _said(self) -> int:
        """Tokens of the text after its prompt."""
        return max(0, len(self._text) - len(self._start.context))

    def _forget_round(self) -> None:
        # Judged sources that were asked -> confidence of those before them; nodes of all sources.
        self._asked: dict[int, float] = {}
        self._proposed: dict[int, int] = {}
        self._was_asked = False

    def _look_up(self, budget: int) -> None:
        """Ask the first lookup, then each other one that adds to what is known by then."""
        sure = 0.0
        for place, lookup in self._consulted.items():
            if place in self._judged and not self._known.asks(self.source_names[place], sure):
                continue
            began = self._clock()
            self._add(place, lookup.propose(budget), began)
            if place in self._judged:
                self._asked[place] = sure
            sure = self._united.sure

    def _ask_costly(self, budget: int) -> None:
        """Ask costly sources where that pays, and lookups what follows their guesses."""
        known, sure, taken = self._known, self._united.sure, dict[int, tuple[float, int]]()
        left = known.left(self._said, self._room)
        for place, source in self._costly.items():
            name, unread = self.source_names[place], source.unread()
            from_states = HIDDEN_STATES in source.requires
            if (from_states and not self._begun) or source.waits():
                continue  # before the first pass it has nothing to guess from
            if known.asks(name, sure, unread, left):
                if from_states and self._states is not None:
                    source.offer_states(self._states)
                began = self._clock()
                self._add(place, source.propose(budget), began)
                taken[place] = self._clock() - began, unread
                self._asked[place], sure = sure, self._united.sure
        if taken:
            began = self._clock()
            self._continue_ends()
            more = (self._clock() - began) / len(taken)
            for place, (seconds, unread) in taken.items():
                name, spent = self.source_names[place], 1e3 * (seconds + more)
                known.took(name, spent, unread, self._asked[place])

    def _add(self, place: int, tree: Tree, began: float, at: int = ROOT) -> None:
        """Add what the source of this number, asked at the time `began`, guesses after node `at`."""
        self._seconds[place] += self._clock() - began
        self._proposed[place] = self._proposed.get(place, 0) + len(tree)
        if len(tree):
            self._united.add(tree, 1 << place, at)

    def _continue_ends(self) -> None:
        """Ask lookups what follows the likeliest ends of costly guesses."""
        costly = sum(1 << place for place in self._asked if place in self._costly)
        for node, path in self._united.ends(costly, _LEAVES):
            for place, lookup in self._consulted.items():
                began = self._clock()
                self._add(place, lookup.propose_after(path, _CONTINUED), began, node)

    def _judge(self, round: Round) -> None:
        width = 1 + len(round.tree)
        for place, sure in self._asked.items():
            rows, claimed = round.rows_owed_to(place)
            tokens = round.owed_to(place) if rows else 0
            self._known.judge(self.source_names[place], sure, tokens, claimed, width, rows)
        if not (round.prefill and round.first):  # its own prompt: sources read it, too
            drafting, target = self._drafted - self._wanted, self._clock() - self._drafted
            context, tokens = len(self._text) - 1, len(round.path.tokens)
            timed = None if round.prefill else 1e3 * target
            self._known.played(context, width, tokens, 1e3 * drafting, timed)
        else:
            self._known.skipped()
