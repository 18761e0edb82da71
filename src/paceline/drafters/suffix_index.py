"""An online suffix automaton over token ids: the longest-suffix match of LLMA.

LLMA (Yang et al. 2023, arXiv 2304.04487, section 2.2) looks for the longest suffix of the text in
the references and copies what follows it there. The official code tries n-grams of five tokens
down to one; here a match has any length, and a token costs amortised constant time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Literal

from paceline.errors import UsageError

__all__ = ["Match", "SuffixIndex"]

_ROOT = 0
_NONE = -1  # no state, no position, no outgoing edge
_BRANCHING = -2  # in place of an edge's token: several edges, kept in a table


class Match:
    """How much of the end of a token stream occurs in a `SuffixIndex`; made by its `begin`.

    length: of the longest suffix of the tokens fed so far that occurs in one of the texts.
    """

    __slots__ = ("_index", "_size", "_state", "length")

    def __init__(self, index: SuffixIndex) -> None:
        self._index, self._size = index, len(index)
        self._state, self.length = _ROOT, 0

    def advance(self, token: int) -> None:
        """Feed the next token of the stream.

        Raises UsageError if `token` is negative, RuntimeError if the index has grown meanwhile."""
        if token < 0:
            raise UsageError(f"token ids must be at least 0, got {token}")
        self.check()
        index, state = self._index, self._state
        while (reached := index._follow(state, token)) == _NONE and state != _ROOT:
            state = index._links[state]
            self.length = index._lengths[state]
        if reached != _NONE:
            state = reached
            self.length += 1
        self._state = state

    def copy(self) -> Match:
        """An independent copy."""
        other = Match(self._index)
        other._size, other._state, other.length = self._size, self._state, self.length
        return other

    def check(self) -> None:
        """Raises RuntimeError if the index has grown since this match began."""
        # The new text may hold a longer suffix, of tokens that the match no longer knows.
        if self._size != len(self._index):
            raise RuntimeError("the index has grown: begin a new match and feed it the last tokens")


class SuffixIndex:
    """Finds where the end of a token stream occurs in a set of texts, and what follows it there.

    >>> index = SuffixIndex(tie="first")
    >>> index.add([7, 1, 2, 3, 4, 5])
    >>> index.add([2, 3, 9])
    >>> match = index.begin()
    >>> for token in (8, 1, 2, 3):
    ...     match.advance(token)
    >>> match.length  # 1 2 3 is in the first text, 8 1 2 3 is nowhere
    3
    >>> index.continuation(match, 16)
    ([4, 5], 3)

    seed: fixes the choices of tie="random".
    tie: which of equally long matches is copied: a "random" one, as in the paper, or the "first"
    added, as in the official code.

    Structure: a generalised suffix automaton (Blumer et al. 1985). Each text is fed from the
    initial state, so no match crosses a border and no token id has to serve as one. A state stands
    for substrings with one common set of end positions; its link leads to their longest suffix that
    ends in more places. Most states have one edge, kept in arrays; branching ones own a dict.

    Choice: each position has a priority ("first": the position itself; "random": a 64-bit number
    drawn from the seed), and each state keeps as its representative the best of its end positions.
    A new position is offered to the state of its prefix, then along the links, up to the first
    state that holds something better: the states beyond end at the same places and more, so they
    hold something at least as good. A state that is split off inherits the representative. Random
    priorities make each of n occurrences the best with probability 1/n: the choice is uniform, and
    since the newest one is so rarely the best, a walk is expected to take 1 + 1/2 + ... + 1/n =
    O(log n) steps at most, even in a text of one repeated token.

    Ends: nothing follows the last token of a text, so its position is never offered. A match only
    at ends of texts has no representative; its longest suffix with one is used, at most O(sqrt(n))
    links away, as each link needs one more text with that end.

    A token costs 3 to 7 microseconds to add and 50 to 300 bytes. Not thread-safe while adding.
    """

    def __init__(self, seed: int = 0, tie: Literal["random", "first"] = "random") -> None:
        if tie not in ("random", "first"):
            raise UsageError(f"tie is {tie!r}: choose 'random' or 'first'")
        self._random = Random(seed) if tie == "random" else None  # noqa: S311 (no secret)
        self._tokens = array("i")  # all texts, one after the other
        self._ends: list[int] = []  # where each text ends in _tokens
        self._priorities = array("Q")  # of each position; lower is better
        # One row per state. A branching state has the number of its table in _edge_states.
        self._lengths = array("i", [0])
        self._links = array("i", [_NONE])
        self._representatives = array("i", [_NONE])
        self._edge_tokens = array("i", [_NONE])
        self._edge_states = array("i", [_NONE])
        self._tables: list[dict[int, int]] = []

    def __len__(self) -> int:
        """The number of indexed tokens in all texts."""
        return len(self._tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Index one more text; matches begun earlier are then stale and raise RuntimeError.

        Raises UsageError, and adds nothing, if an id is negative or does not fit into 32 bits."""
        text = _checked(tokens)
        start = len(self._tokens)
        self._tokens.extend(text)
        self._ends.append(len(self._tokens))
        if self._random is None:
            self._priorities.extend(range(start, len(self._tokens)))
        else:
            self._priorities.frombytes(self._random.randbytes(8 * len(text)))
        last = _ROOT
        for position, token in enumerate(text, start):
            if last != _ROOT:  # only now is it known that something follows the last position
                self._offer(last, position - 1)
            last = self._extend(last, token)

    def begin(self) -> Match:
        """A match of the empty stream; feed it with `Match.advance`."""
        return Match(self)

    def continuation(self, match: Match, count: int, minimum: int = 1) -> tuple[list[int], int]:
        """Up to `count` tokens that follow the chosen occurrence in its text, and the match length
        there, see `locate`; ([], 0) if that finds none. Raises what `locate` raises."""
        found = self.locate(match, minimum)
        if found is None or count < 1:
            return [], 0
        start, matched = found
        end = self._ends[bisect_right(self._ends, start)]
        return self._tokens[start : min(start + count, end)].tolist(), matched

    def locate(self, match: Match, minimum: int = 1) -> tuple[int, int] | None:
        """The chosen occurrence of the longest suffix that something follows: the position, counted
        through all texts, of the first token after it, and its length, which is below
        `match.length` if the longest match ends its text. None below `minimum`.

        Raises UsageError if `minimum` is below 1, RuntimeError if the index has grown meanwhile."""
        if minimum < 1:
            raise UsageError(f"minimum is {minimum}: give a length of at least 1")
        match.check()
        state, length = match._state, match.length
        while length >= minimum:
            position = self._representatives[state]
            if position != _NONE:
                return position + 1, length
            state = self._links[state]
            length = self._lengths[state]
        return None

    def _offer(self, state: int, position: int) -> None:
        """Make `position` the representative of every state for which it is the best so far."""
        priorities, representatives = self._priorities, self._representatives
        priority = priorities[position]
        while state != _ROOT:
            held = representatives[state]
            if held != _NONE and priorities[held] < priority:
                return
            representatives[state] = position
            state = self._links[state]

    def _extend(self, last: int, token: int) -> int:
        """The state of a prefix with one more token, given that of the prefix."""
        # Edges are handled in place, not by helpers: most of the time of `add` is spent here.
        edge_tokens, edge_states, links = self._edge_tokens, self._edge_states, self._links
        state, new, reached = last, len(links), _NONE
        while state != _NONE:
            edge = edge_tokens[state]
            if edge == _NONE:
                edge_tokens[state] = token
                edge_states[state] = new
            elif edge == _BRANCHING:
                reached = self._tables[edge_states[state]].setdefault(token, new)
                if reached != new:
                    break
            elif edge == token:
                reached = edge_states[state]
                break
            else:
                self._tables.append({edge: edge_states[state], token: new})
                edge_tokens[state] = _BRANCHING
                edge_states[state] = len(self._tables) - 1
            state = links[state]
        if state == last:  # another text has this prefix: no new state is needed
            return self._exact(state, token, reached)
        self._lengths.append(self._lengths[last] + 1)
        links.append(_ROOT)
        for column in (self._representatives, edge_tokens, edge_states):
            column.append(_NONE)
        if state != _NONE:
            links[new] = self._exact(state, token, reached)
        return new

    def _exact(self, state: int, token: int, reached: int) -> int:
        """The state whose longest string is that of `state` plus `token`, its edge to `reached`."""
        length = self._lengths[state] + 1
        if self._lengths[reached] == length:
            return reached
        # `reached` has longer strings too, which will end in fewer places: the others move to a
        # copy, and the edges of `state` and its suffixes with them.
        copy = len(self._links)
        self._lengths.append(length)
        for column in self._links, self._representatives, self._edge_tokens, self._edge_states:
            column.append(column[reached])
        self._links[reached] = copy
        if self._edge_tokens[copy] == _BRANCHING:
            self._tables.append(self._tables[self._edge_states[reached]].copy())
            self._edge_states[copy] = len(self._tables) - 1
        while state != _NONE and self._follow(state, token) == reached:
            if self._edge_tokens[state] == _BRANCHING:
                self._tables[self._edge_states[state]][token] = copy
            else:
                self._edge_states[state] = copy
            state = self._links[state]
        return copy

    def _follow(self, state: int, token: int) -> int:
        edge = self._edge_tokens[state]
        if edge == token:
            return self._edge_states[state]
        if edge == _BRANCHING:
            return self._tables[self._edge_states[state]].get(token, _NONE)
        return _NONE


def _checked(tokens: Sequence[int]) -> array[int]:
    try:
        text = array("i", tokens)
    except OverflowError:
        raise UsageError("a token id does not fit into 32 bits: check the tokenizer") from None
    if text and min(text) < 0:
        raise UsageError(f"token ids must be at least 0, got {min(text)}")
    return text
