"""Sums over the rounds of texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from paceline.records import Round


@dataclass
class SourceStats:
    """Sums over the rounds of one text, for one source of its drafter.

    rounds: all rounds of the text; the source was asked in `asked` of them. proposed: its nodes;
    `scored` of them were left after the tree was cut to what pays, and `accepted`, which may be
    other sources' too, were accepted. gained: tokens the text would lack without the source.
    """

    rounds: int = 0
    asked: int = 0
    proposed: int = 0
    scored: int = 0
    accepted: int = 0
    gained: int = 0
    seconds: float = 0.0

    def add(self, round: Round, place: int) -> None:
        """Count one more round, in which this is source number `place`."""
        own = round.sources[place]
        self.rounds += 1
        self.seconds += own.seconds
        if not own.asked:
            return
        self.asked += 1
        self.proposed += own.proposed
        if sources := round.tree.sources:
            bit = 1 << place
            self.scored += len([1 for by in sources if by & bit])
            if round.path.nodes:
                self.accepted += len([1 for node in round.path.nodes if sources[node] & bit])
                self.gained += round.owed_to(place)

    def merge(self, other: SourceStats) -> None:
        """Count the rounds of another text as well."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Stats:
    """Sums over the rounds of one text.

    acceptance_histogram: tokens gained -> rounds that gained that many.
    drafted: guesses; virtual nodes, which cannot be accepted, do not count.
    depth_histogram: depth of the deepest guess, 0 if nothing was guessed -> rounds.
    reused: prompt tokens that were already in the cache.
    sources: by name, if the drafter has any.
    prefill_seconds: the target's time until the end of the first round, which reads the prompt.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    depth_histogram: Counter[int] = field(default_factory=Counter)
    reused: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    commit_seconds: float = 0.0
    sources: dict[str, SourceStats] = field(default_factory=dict)

    def add(self, round: Round) -> None:
        """Count one more round."""
        self.rounds += 1
        self.tokens += len(round.path.tokens)
        depths = round.guess_depths
        self.drafted += len(depths)
        self.accepted += len(round.path.nodes)
        self.acceptance_histogram[len(round.path.tokens)] += 1
        self.depth_histogram[max(depths, default=0)] += 1
        self.draft_seconds += round.seconds.draft
        self.commit_seconds += round.seconds.commit
        if round.first:
            self.prefill_seconds += round.seconds.target
        else:
            self.target_seconds += round.seconds.target
        for place, source in enumerate(round.sources):
            if source.name not in self.sources:
                self.sources[source.name] = SourceStats()
            self.sources[source.name].add(round, place)

    def merge(self, other: Stats) -> None:
        """Count the rounds of another text as well."""
        for name, stats in other.sources.items():
            self.sources.setdefault(name, SourceStats()).merge(stats)
        for name in vars(self).keys() - {"sources"}:
            # Counters add up like numbers; they only drop zeros, which do not matter.
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens gained per round, the bonus token included (MAT, tau, block efficiency)."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def triggers(self) -> int:
        """Rounds in which something was guessed."""
        return sum(rounds for depth, rounds in self.depth_histogram.items() if depth)

    @property
    def acceptance_by_position(self) -> list[float]:
        """For depth 1, 2, …: of the rounds that guessed that deep, the share that accepted a guess
        there; [] if it is unknown what rounds gained."""
        deepest = max(self.depth_histogram, default=0) if self.acceptance_histogram else 0
        shares = []
        for depth in range(1, deepest + 1):
            guessed = sum(n for reached, n in self.depth_histogram.items() if reached >= depth)
            accepted = sum(n for gained, n in self.acceptance_histogram.items() if gained > depth)
            shares.append(accepted / guessed)
        return shares

    @property
    def draft_acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0.0 if none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def seconds(self) -> float:
        """Total time, in seconds."""
        return self.prefill_seconds + self.draft_seconds + self.target_seconds + self.commit_seconds

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of the whole request, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0
