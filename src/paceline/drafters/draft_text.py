"""A draft model's own text: the loop on a smaller target, a little ahead of what is committed.

The text is a `Generation` like any other, with a drafter of its own. So any target can be a draft
model, and any drafter makes it faster. Without one, or if rounds with it take longer than a chain of
single tokens, they are left out (`DraftChain`, `FasterWay`). The tokens beyond the committed ones
are the guesses. Where the target disagrees, the text is corrected from there, and the draft model's
target keeps what is still right in its cache: a rejection is nothing special.

    committed: a b c        guesses: d e f
    committed: a b c d x    guesses: none; "e f" is taken back, and the next pass reads "x"
    committed: a b c d      guesses: e f; nothing is taken back (the target was not asked about f)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.chains import ChainEnd
from paceline.drafters.draft_chain import DraftChain
from paceline.drafters.draft_passes import Guess, Said, Speaker
from paceline.drafters.draft_rounds import DraftRounds
from paceline.drafters.draft_target import in_vocabulary
from paceline.drafters.draft_ways import FasterWay, WayTimes
from paceline.drafters.host import Host
from paceline.drafters.plain import Plain
from paceline.fixed_budget import FixedBudget
from paceline.planning.planner import TreePlanner
from paceline.prefix import common_prefix
from paceline.protocols import CHAINS, Drafter, Planner, Target, check_capabilities
from paceline.records import TextStart
from paceline.sampling import GREEDY

__all__ = ["DraftText", "Guess"]


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


def _speaker(
    host: Host, target: Target, inner: Drafter, vocab_size: int, others: int, budget: int
) -> Speaker:
    """Runs the draft model: with its own drafter, without, or, unless a budget is given, as
    `FasterWay` decides."""

    def chain() -> DraftChain:
        return DraftChain(target, vocab_size, others, host.clock)

    chains, plain = CHAINS in target.capabilities, isinstance(inner, Plain)
    if plain and chains:
        return chain()
    fixed = budget or plain
    planner: Planner = FixedBudget(budget) if fixed else _planner(host, inner)
    rounds = DraftRounds(target, inner, planner, others, host.clock)
    if fixed or not chains:
        return rounds
    times: WayTimes = host.learn((WayTimes, type(inner)), WayTimes)
    return FasterWay(rounds, chain(), times, host.clock)


def _planner(host: Host, inner: Drafter) -> TreePlanner:
    key = (TreePlanner, type(inner), inner.sized_by)
    planner: TreePlanner = host.learn(key, lambda: TreePlanner(host.curve))
    return planner
