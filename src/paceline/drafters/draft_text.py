"""A draft model's own text: the loop on a smaller target, a little ahead of what is committed.

The text is a `Generation` like any other, so any target can be a draft model, and any drafter makes
it faster. Without one, or if rounds with it take longer than a chain of single tokens, these are
left out (`DraftChain`, `WayTimes`). The tokens beyond the committed ones are the guesses. Where the
target disagrees, the text is corrected from there: a rejection is nothing special.

    committed: a b c        guesses: d e f
    committed: a b c d x    guesses: none; "e f" is taken back, and the next pass reads "x"
    committed: a b c d      guesses: e f; nothing is taken back (the target was not asked about f)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.chains import ChainEnd
from paceline.drafters.draft_chain import DraftChain, Guess, Said, Speaker
from paceline.drafters.draft_rounds import DraftRounds
from paceline.drafters.draft_target import in_vocabulary
from paceline.drafters.host import Host
from paceline.drafters.plain import Plain
from paceline.loop import FixedBudget
from paceline.planning.planner import TreePlanner
from paceline.prefix import common_prefix
from paceline.protocols import CHAINS, Drafter, Planner, check_capabilities
from paceline.records import TextStart

_TRIAL = 4  # drafts that show how long the other way takes
_FIRST, _LONGEST = 32, 512
"""Drafts before the next trial of the other way: four times as many each time that nothing
changes."""
_MEMORY = 32  # drafts of a way that count


class DraftText:
    """What a draft model would continue with, for one text at a time.

    host: the draft model. inner: its own drafter.
    vocab_size: of the model to draft for.
    others: runners-up to keep per guess.
    budget: most nodes of the inner drafter's trees; 0 for as many as pay.

    In rounds, passes bring several guesses, but each is a round of the loop. In a chain, a pass
    brings one guess and costs little else. The guesses are the same, so only the time decides,
    which depends on the text and on how long passes take. With a budget, or a target without
    `CHAINS`, all drafts are made in rounds; without a drafter, in a chain if possible.

    Texts of one host and kind of inner drafter share a planner, and times of both ways.

    If the text is longer than the model's context or holds a token that it does not have, there are
    no guesses.

    guesses: what follows the `committed` tokens.

    Raises UsageError if `inner` needs what the draft model's target lacks.
    """

    def __init__(
        self, host: Host, inner: Drafter, vocab_size: int, others: int, budget: int = 0
    ) -> None:
        check_capabilities(inner, host.target)
        known = host.target.vocab_size if host.tokens is None else host.tokens
        target = in_vocabulary(host.target, vocab_size, known)
        chains, plain = CHAINS in target.capabilities, isinstance(inner, Plain)
        self._ways: dict[bool, Speaker] = {}  # by whether it drafts in rounds
        if not (chains and plain):
            planner: Planner = FixedBudget(budget)
            if not (budget or plain):
                kind = TreePlanner, type(inner), inner.sized_by
                planner = host.learn(kind, lambda: TreePlanner(host.curve))
            self._ways[True] = DraftRounds(target, inner, planner, others, host.clock)
        if chains and (plain or not budget):
            self._ways[False] = DraftChain(target, vocab_size, others, host.clock)
        self._times: WayTimes | None = None
        if len(self._ways) > 1:
            self._times = host.learn((WayTimes, type(inner)), WayTimes)
        self.guesses: list[Guess] = []
        self._target, self._clock = target, host.clock
        self._way = self._ways[self._next_in_rounds]
        self._started = TextStart((0,))
        self._text: list[int] | None = None  # with the guesses
        self.committed = 0

    @property
    def unread(self) -> int:
        """Upper bound on tokens that the model has not read yet; before its first pass, all."""
        return 0 if self._text is None else self._way.unread

    def start(self, text: TextStart) -> None:
        """Begin with these committed tokens. The sampler is the target's."""
        self.stop()
        self._started, self.committed = text, len(text.context)
        # The model cannot generate what it cannot read.
        if self._can_read(text.context) and self._room(len(text.context)) > 0:
            self._text = list(text.context)
            self._take_over(self._text)

    def stop(self) -> None:
        """Release the text."""
        self.guesses, self._text = [], None
        self._way.stop()

    def resume(self, text: TextStart) -> None:
        """Continue with this committed text, whatever was committed before."""
        if self._text is None:
            self.start(text)
            return
        same = common_prefix(self._text, text.context)
        self._continue(same, text.context[same:])

    def observe(self, tokens: Sequence[int]) -> None:
        """Take over tokens committed after the earlier ones."""
        right = common_prefix([guess.token for guess in self.guesses], tokens)
        self._continue(self.committed + right, tokens[right:])

    def guess(self, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Generate until there are `most` guesses, or fewer if `end` says so, in passes that may
        bring several each."""
        missing = most - len(self.guesses)
        if self._text is None or missing < 1 or (room := self._room(len(self._text))) < 1:
            return ()
        in_rounds = self._next_in_rounds
        if self._ways[in_rounds] is not self._way:
            self._way.stop()
            self._take_over(self._text)
        began = self._clock()
        passes = self._way.say(room, missing, end)
        for said in passes:
            self.guesses += said.guesses
        guesses = min(missing, sum(len(said.guesses) for said in passes))
        if self._times and guesses and not any(said.prefill for said in passes):
            self._times.drafted(in_rounds, self._clock() - began, guesses)
        return passes

    @property
    def _next_in_rounds(self) -> bool:
        """Whether to draft in rounds next."""
        return next(iter(self._ways)) if self._times is None else self._times.next_in_rounds

    def _take_over(self, text: list[int]) -> None:
        """Let the way that is next continue the text."""
        self._way = self._ways[self._next_in_rounds]
        self._way.start(text, self._started)

    def _continue(self, same: int, new: Sequence[int]) -> None:
        """The text's first `same` tokens are committed, followed by `new` ones; guesses stay if they
        agree with that."""
        if same >= self.committed and not new:
            del self.guesses[: same - self.committed]
        else:
            self.guesses = []
            if self._text is not None:
                self._text[same:] = new
                self._way.correct(same)
                if not self._can_read(new):
                    self._text = None
        self.committed = same + len(new)

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
            before, self.in_rounds = self.in_rounds, rounds <= chain
            self._wait = _FIRST if before != self.in_rounds else min(_LONGEST, 4 * self._wait)
            self._since = 0
