"""One text's place in a grammar, and what a model writes where that leaves it a few choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import chain, takewhile
from time import thread_time
from typing import Any, TypeVar, cast

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.protocols import Matcher

_LONGEST_REASON = 300
_TOO_LONG = 0.5
"""Seconds of one call, for which all other texts wait."""

_FEW = 256
"""If more tokens are allowed, what was drawn last time says little."""

_MOST_KEPT = 4096
_FIRST, _STEP, _LEAST = 0.5, 0.5, 0.05

_Call = TypeVar("_Call", bound=Callable[..., Any])


clock = thread_time
"""Seconds that this thread has worked: however busy the machine is, the same texts fail."""


def _timed(call: _Call) -> _Call:
    """A method that fails if it takes too long. Where the text itself asks, that ends the text;
    where its guesses ask, which plain decoding has not, it ends only the guessing."""

    @wraps(call)
    def timed(self: GrammarMatcher, *args: Any) -> Any:
        began = clock()
        found = call(self, *args)
        if self._origin is not None and clock() - began > _TOO_LONG:
            raise UsageError(
                "the constraint takes too long for one token: use a simpler schema, pattern or "
                "grammar"
            )
        return found

    return cast("_Call", timed)


class Habits:
    """Knows which token was drawn where the same were allowed, in all texts of a session.

    Such places are alike: a model that breaks the line after one brace does so after the next. So
    its way of writing JSON is known after a few lines, and guessed in the next text.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, float]] = {}

    def learn(self, place: int, token: int) -> None:
        """Record a drawn token. place: a hash of what was allowed."""
        known, sure = self._known.pop(place, (token, _FIRST))
        sure += _STEP * (1 - sure) if known == token else -_STEP * sure
        self._known[place] = (token, max(_LEAST, sure))
        if len(self._known) > _MOST_KEPT:
            del self._known[next(iter(self._known))]

    def recall(self, place: int) -> tuple[int, float] | None:
        """The token drawn last, with a confidence in (0, 1); None for a place never seen."""
        return self._known.get(place)


@dataclass(frozen=True)
class Tokens:
    """What matchers know of a tokenizer and its model.

    count: of tokens that the tokenizer knows. vocab_size: of the model, which may know fewer.
    spelled: special tokens -> the ordinary tokens that write the same characters.
    habits: of the model, learned from what is drawn.
    """

    count: int
    vocab_size: int
    spelled: Mapping[int, tuple[int, ...]]
    habits: Habits


class GrammarMatcher(Matcher):
    """A matcher on top of llguidance's.

    matcher: an `LLMatcher`. record: whether what is drawn may be guessed in later texts.

    Raises UsageError if llguidance fails, e.g. because a lexer has become too complex, or if a call
    takes too long.
    """

    def __init__(self, matcher: Any, tokens: Tokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._origin: GrammarMatcher | None = None  # `Grammars` keeps it while there are copies
        self._place: int | None = None  # if few tokens are allowed, a hash of these
        self.record = True
        self._bits = np.zeros((tokens.count + 31) // 32, dtype=np.uint32)

    def copy(self) -> GrammarMatcher:
        """Another matcher at the same place."""
        made = GrammarMatcher(self._matcher.deep_copy(), self._tokens)
        made._origin, made.record = self._origin or self, self.record
        return made

    @_timed
    def allowed(self) -> torch.Tensor:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        size = self._tokens.count
        bits = np.unpackbits(self._bits.view(np.uint8), count=size, bitorder="little")
        if np.count_nonzero(bits) == 1:
            self._spell(bits)
        bits = bits[: self._tokens.vocab_size]
        count = np.count_nonzero(bits)
        if not count:
            raise UsageError("the constraint allows no token of this model here")
        self._place = hash(self._bits.tobytes()) if count <= _FEW else None
        return torch.from_numpy(bits.view(np.bool_))

    @_timed
    def push(self, token: int) -> bool:
        if self._place is not None and self.record:
            self._tokens.habits.learn(self._place, token)
        self._place = None
        self._matcher.consume_token(token)
        self._check()
        stopped: bool = self._matcher.is_stopped()
        return stopped

    @_timed
    def forced(self) -> list[int]:
        forced: list[int] = self._matcher.compute_ff_tokens()
        spelled, size = self._tokens.spelled, self._tokens.vocab_size
        if not spelled.keys().isdisjoint(forced) and not self._takes(forced):
            forced = [*chain.from_iterable(spelled.get(each, (each,)) for each in forced)]
        return [*takewhile(lambda token: token < size, forced)]

    def likely(self) -> tuple[int, float] | None:
        self.allowed()
        return None if self._place is None else self._tokens.habits.recall(self._place)

    @_timed
    def enter(self, token: int) -> bool:
        entered: int = self._matcher.try_consume_tokens([token])
        return entered == 1

    @_timed
    def leave(self, count: int) -> None:
        self._matcher.rollback(count)
        self._check()

    def _takes(self, tokens: list[int]) -> bool:
        """Whether all these may be next. `enter` would refuse a token that ends texts, even where a
        grammar names it."""
        supposed = self._matcher.deep_copy()
        return all(supposed.consume_token(token) and not supposed.is_error() for token in tokens)

    def _spell(self, bits: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Where characters are forced that a special token has, llguidance names that token, but
        takes only ordinary ones. Where a grammar wants the token itself, it stays."""
        (only,) = np.flatnonzero(bits).tolist()
        if only in self._tokens.spelled and not self._takes([only]):
            bits[only], bits[self._tokens.spelled[only][0]] = 0, 1

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the constraint failed: {first_line(self._matcher.get_error())}")


def first_line(text: str) -> str:
    """The first line of a message of llguidance, without its details; cut if too long."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + "…"
