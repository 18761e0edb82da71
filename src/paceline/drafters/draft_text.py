"""A draft model's own text: the loop on a smaller target, a little ahead of what is committed.

The text is a `Generation` like any other, so any target can be a draft model, and any drafter makes
it faster. Without one, or if rounds with it take longer than a chain of single tokens, these are
left out (`DraftChain`, `FasterWay`). The tokens beyond the committed ones are the guesses. Where
the target disagrees, the text is corrected from there: a rejection is nothing special.

    committed: a b c        guesses: d e f
    committed: a b c d x    guesses: none; "e f" is taken back, and the next pass reads "x"
    committed: a b c d      guesses: e f; nothing is taken back (the target was not asked about f)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from paceline.chains import ChainEnd
from paceline.drafters.draft_chain import DraftChain, Guess, Said, Speaker
from paceline.drafters.draft_rounds import DraftRounds
from paceline.drafters.draft_target import in_vocabulary
from paceline.drafters.host import Host
from paceline.drafters.plain import Plain
from paceline.loop import FixedBudget
from paceline.planning.planner import TreePlanner
from paceline.prefix import common_prefix
from paceline.protocols import CHAINS, Drafter, Planner, Target, check_capabilities
from paceline.records import TextStart
from paceline.sampling import GREEDY, Sampler

__all__ = ["DraftText", "FasterWay", "Guess", "WayTimes"]

_TRIAL = 4  # drafts that show how long the other way takes
_FIRST, _LONGEST = 32, 512
"""Drafts before the next trial of the other way: four times as many each time that nothing
changes."""
_MEMORY = 32  # drafts of a way that count
_WORTH = 1.6
"""Rounds are left only if they take this many times as long for a guess: they also bring guesses
beyond those asked for, and gain most in a few long drafts, which a trial easily misses."""


class DraftText:
    """What a draft model would continue with, for one text at a time.

    host: the draft model. inner: its own drafter.
    vocab_size: of the model to draft for.
    others: runners-up to keep per guess.
    budget: most nodes of the inner drafter's trees; 0 for as many as pay.

    Texts of one host and kind of inner drafter share a planner.

    If the text is longer than the model's context or holds a token that it does not have, there are
    no guesses.

    Raises UsageError if `inner` needs what the draft model's target lacks.
    """

    def __init__(
        self, host: Host, inner: Drafter, vocab_size: int, others: int, budget: int = 0
    ) -> None:
        check_capabilities(inner, host.target)
        known = host.target.vocab_size if host.tokens is None else host.tokens
        self.guesses: list[Guess] = []
        self._target = in_vocabulary(host.target, vocab_size, known)
        self._speaker = _speaker(host, self._target, inner, vocab_size, others, budget)
        self._text: list[int] | None = None  # with the guesses
        self._committed = 0

    @property
    def unread(self) -> int:
        """Upper bound on tokens that the model has not read yet; before its first pass, all."""
        return 0 if self._text is None else self._speaker.unread

    def start(self, text: TextStart) -> None:
        """Begin with these committed tokens. The sampler is the target's."""
        self.stop()
        # The model cannot generate what it cannot read.
        references = [reference for reference in text.references if self._can_read(reference)]
        self._committed = len(text.context)
        if self._can_read(text.context) and self._room(len(text.context)) > 0:
            sampler = (text.sampler or GREEDY).coupled()
            self._text = list(text.context)
            self._speaker.start(self._text, references, sampler)

    def stop(self) -> None:
        """Release the text."""
        self.guesses, self._text = [], None
        self._speaker.stop()

    def resume(self, text: TextStart) -> None:
        """Continue with this committed text, whatever was committed before."""
        if self._text is None:
            self.start(text)
            return
        same = common_prefix(self._text, text.context)
        if same < len(text.context) or same < self._committed:
            self._correct(same, text.context[same:])
        else:
            del self.guesses[: same - self._committed]
        self._committed = len(text.context)

    def observe(self, tokens: Sequence[int]) -> None:
        """Take over tokens committed after the earlier ones."""
        guessed = [guess.token for guess in self.guesses]
        right = common_prefix(guessed, tokens) if guessed else 0
        if right < len(tokens):
            self._correct(self._committed + right, tokens[right:])
        else:
            del self.guesses[:right]
        self._committed += len(tokens)

    def guess(self, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Generate until there are `most` guesses, or fewer if `end` says so, in passes that may
        bring several each."""
        missing = most - len(self.guesses)
        if self._text is None or missing < 1:
            return ()
        room = self._room(len(self._text))
        passes = self._speaker.say(room, missing, end) if room > 0 else ()
        for said in passes:
            self.guesses += said.guesses
        return passes

    def _correct(self, kept: int, tokens: Sequence[int]) -> None:
        """Keep the text's first `kept` tokens, append these, and drop all guesses."""
        self.guesses = []
        if self._text is None:
            return
        del self._text[kept:]
        self._text.extend(tokens)
        self._speaker.correct(kept)
        if not self._can_read(tokens):
            self._text = None

    def _can_read(self, tokens: Sequence[int]) -> bool:
        return max(tokens, default=0) < self._target.vocab_size

    def _room(self, length: int) -> int:
        """Tokens that fit after a text; the model need not read the last one."""
        longest = self._target.max_context
        return sys.maxsize if longest is None else longest - length


class WayTimes:
    """Seconds per guess both ways, over any number of texts. Decisions depend on nothing else.

    in_rounds: whether rounds are worth their time; at first they are.
    """

    def __init__(self) -> None:
        self.in_rounds = True
        self._seconds, self._guesses = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
        self._wait, self._since, self._left = _FIRST, 0, 0

    @property
    def next_in_rounds(self) -> bool:
        """Which way to draft next."""
        return self.in_rounds != (self._left > 0)

    def drafted(self, in_rounds: bool, seconds: float, guesses: int) -> None:
        """Record a draft of some guesses."""
        self._seconds[in_rounds] += seconds - self._seconds[in_rounds] / _MEMORY
        self._guesses[in_rounds] += guesses - self._guesses[in_rounds] / _MEMORY
        if in_rounds == self.in_rounds:
            self._since += 1
            if not self._left and self._since >= self._wait:
                self._left = _TRIAL
        elif self._left:
            self._left -= 1
            if self._left:
                return
            rounds, chain = (self._seconds[way] / self._guesses[way] for way in (True, False))
            before, self.in_rounds = self.in_rounds, rounds <= _WORTH * chain
            self._wait = _FIRST if before != self.in_rounds else min(_LONGEST, 4 * self._wait)
            self._since = 0


class FasterWay(Speaker):
    """Drafts in rounds or, where that is clearly faster, as a chain.

    In rounds, with the draft model's own drafter, passes bring several guesses, but each is a round
    of the loop. In a chain, a pass brings one guess and costs little else. The guesses are the
    same, so only the time decides: what is saved by a draft model's own drafter depends on the
    text, and on how long its passes take.

    rounds, chain: of the same draft model, in rounds with its own drafter. times: shared by all
    texts of a draft model and its drafter. clock: seconds.
    """

    def __init__(
        self, rounds: DraftRounds, chain: DraftChain, times: WayTimes, clock: Callable[[], float]
    ) -> None:
        self._ways: dict[bool, Speaker] = {True: rounds, False: chain}
        self._times, self._clock = times, clock
        self._in_rounds = times.next_in_rounds
        self._text: tuple[list[int], Sequence[Sequence[int]], Sampler] = [0], (), GREEDY

    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """See `Speaker.start`."""
        self._text = text, references, sampler
        self._in_rounds = self._times.next_in_rounds
        self._way.start(*self._text)

    def correct(self, kept: int) -> None:
        """See `Speaker.correct`."""
        self._way.correct(kept)

    @property
    def unread(self) -> int:
        """See `Speaker.unread`."""
        return self._way.unread

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`."""
        if self._times.next_in_rounds != self._in_rounds:
            self._way.stop()
            self._in_rounds = not self._in_rounds
            self._way.start(*self._text)
        began = self._clock()
        passes = self._way.say(room, most, end)
        guesses = min(most, sum(len(said.guesses) for said in passes))
        if guesses and not any(said.prefill for said in passes):
            self._times.drafted(self._in_rounds, self._clock() - began, guesses)
        return passes

    def stop(self) -> None:
        """See `Speaker.stop`."""
        self._way.stop()

    @property
    def _way(self) -> Speaker:
        return self._ways[self._in_rounds]


def _speaker(
    host: Host, target: Target, inner: Drafter, vocab_size: int, others: int, budget: int
) -> Speaker:
    """With the inner drafter, without or, unless a budget is given, as `FasterWay` decides."""

    def chain() -> DraftChain:
        return DraftChain(target, vocab_size, others, host.clock)

    chains, plain = CHAINS in target.capabilities, isinstance(inner, Plain)
    if plain and chains:
        return chain()
    fixed = budget or plain
    kind = TreePlanner, type(inner), inner.sized_by
    planner: Planner = (
        FixedBudget(budget) if fixed else host.learn(kind, lambda: TreePlanner(host.curve))
    )
    rounds = DraftRounds(target, inner, planner, others, host.clock)
    if fixed or not chains:
        return rounds
    times: WayTimes = host.learn((WayTimes, type(inner)), WayTimes)
    return FasterWay(rounds, chain(), times, host.clock)
