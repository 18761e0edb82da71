"""From tokens to text as they arrive: incremental decoding and stop strings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MOST_SILENT = 64
"""Most tokens without text that are decoded again with the next one."""
_LONGEST_CHARACTER = 4
"""Most tokens that one character takes: it has at most four bytes."""
_WINDOW = 8
"""Tokens that are decoded again with the next one, before older ones of them are left out."""
_TAIL = 8
"""Tokens of a prompt that the text after it may depend on."""
CALL_MARKS = "<tool_call>", "</tool_call>"
"""Text, even where they are special tokens: without them, calls could not be found."""


class Tokenizer(Protocol):
    """What sessions need of a tokenizer; those of transformers have it."""

    chat_template: str | None

    def __hash__(self) -> int:
        """What is known of its tokens is kept by tokenizer."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
        """An object with the token ids as `input_ids`."""

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """The text of token ids."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Any:
        """A conversation as text in the form that the model was trained on."""


@lru_cache(16)
def hidden_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of all special tokens but the marks of tool calls."""
    return frozenset(_special(tokenizer)) - _special_ids(tokenizer, CALL_MARKS)


def _special_ids(tokenizer: Tokenizer, strings: Sequence[str]) -> frozenset[int]:
    """The ids of those strings that are special tokens, which have no text in an output."""
    return frozenset(token for token, text in _special(tokenizer).items() if text in strings)


def _special(tokenizer: Tokenizer) -> dict[int, str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    return {token: each.content for token, each in added if each.special}


@lru_cache(16)
def _left_out(tokenizer: Tokenizer) -> frozenset[int] | None:
    """The ids to leave out before decoding; None if the tokenizer itself leaves out just these."""
    return hidden_ids(tokenizer) if _special_ids(tokenizer, CALL_MARKS) else None


class Piece(NamedTuple):
    """A stretch of text and the index of the output token that completed it."""

    token: int
    text: str


class OutputText:
    """The text of one output, fed token by token.

    stop: strings, or special tokens, that end the text; the first of them and what follows is not
    part of it.
    before: tokens of a text that this one continues: after them, a first token keeps the space that
    it begins with, which some decoders drop at the beginning of a text.
    ends: tokens that end texts: they are not part of them, special or not.

    `push` is a condition for `Stopping`. `release` hands out only what is certain: no partial
    character, and no beginning of a possible stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        ends: Collection[int] = (),
    ) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        left_out = _left_out(tokenizer)
        self._skips_special = left_out is None
        self._left_out = frozenset(ends).union(left_out or ())
        self._stop = tuple(stop)
        self._stop_ids = _special_ids(tokenizer, stop) if stop else frozenset[int]()
        self._stopped = False
        self._ids = list(before[-_TAIL:])
        # Decoding starts a little before the undecoded tokens: a token's text may depend on those
        # before it. Tokens from the anchor on that are decoded, and their text.
        self._anchor = 0
        self._decoded, self._known = len(self._ids), ""
        self._ends: list[int] = []  # length of the text after each token
        self._released = 0
        # How much of each stop string the text ends with, up to the character at `_matched`.
        self._begun = [0] * len(self._stop)
        self._matched = 0

    def push(self, token: int) -> bool:
        """Take one token; True if it is, or completes, a stop string."""
        if not self._ends:  # not before: only now it is known that these are the model's tokens
            self._ids = self._whole(self._ids)
            self._decoded, self._known = len(self._ids), self._read(self._ids)
        self._ids.append(token)
        self._extend(self._decode(complete=True))
        return self._stopped or token in self._stop_ids

    def finish(self) -> None:
        """End the text: a partial character at the end becomes a replacement character."""
        if not self._stopped and self._ends:
            rest = self._decode(complete=False)
            self._ends.pop()
            self._extend(rest)

    def of(self, tokens: int) -> str:
        """The text of the first `tokens` tokens: an interrupted walk may have pushed more, and an
        interrupted `finish` may have taken the last one back."""
        if not tokens:
            return ""
        return self.text[: self._ends[tokens - 1]] if tokens <= len(self._ends) else self.text

    def release(self, final: bool = False) -> list[Piece]:
        """The text not yet handed out, by token; all of it if `final`."""
        safe = len(self.text) if final or self._stopped else len(self.text) - self._held_back()
        pieces = []
        # Only tokens whose text is not out yet: scanning all of them would make long texts slow.
        for token in range(bisect_right(self._ends, self._released), len(self._ends)):
            end = min(self._ends[token], safe)
            if end > self._released:
                pieces.append(Piece(token, self.text[self._released : end]))
                self._released = end
        return pieces

    def _decode(self, complete: bool) -> str:
        before, anchor = self._known, self._anchor
        now = self._read(self._ids[anchor:])
        known, silent = len(self._ids), len(self._ids) > self._decoded + _MOST_SILENT
        if complete and now.endswith(_INCOMPLETE):
            if not silent:
                return ""
            # The text repeats what is no character; only its last tokens may yet become one.
            known -= _LONGEST_CHARACTER
            now = self._read(self._ids[anchor:known])
        if before.endswith(_INCOMPLETE) and not (self.text or now.startswith(before)):
            # A character of the prompt has been completed, and counts as the output's.
            cuts = (self._ids[anchor : self._decoded - n] for n in range(1, _LONGEST_CHARACTER))
            before = next((text for text in map(self._read, cuts) if now.startswith(text)), before)
        elif known - anchor > _WINDOW:
            anchor = self._decoded
        # Not after special tokens alone: without text before it, a token may lose its space.
        if len(now) > len(before) or silent:
            text = now if anchor == self._anchor else self._read(self._ids[anchor:known])
            self._anchor, self._decoded, self._known = anchor, known, text
        return now[len(before) :]

    def _whole(self, tokens: Sequence[int]) -> list[int]:
        """The tokens from the beginning of a character on: where bytes are tokens, half a character
        spoils those after it."""
        for begin in range(min(_LONGEST_CHARACTER, len(tokens))):
            if not self._read(tokens[begin:]).endswith(_INCOMPLETE):
                return list(tokens[begin:])
        return list(tokens)

    def _read(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            [token for token in ids if token not in self._left_out],
            skip_special_tokens=self._skips_special,
            clean_up_tokenization_spaces=False,
        )

    def _extend(self, new: str) -> None:
        searched = len(self.text)
        self.text += new
        found = [
            place
            for stop in self._stop
            if (place := self.text.find(stop, max(0, searched - len(stop) + 1))) >= 0
        ]
        if found:
            self._stopped = True
            self.text = self.text[: min(found)]
        self._ends.append(len(self.text))

    def _held_back(self) -> int:
        """Length of the text's longest suffix that a stop string begins with; the text holds no
        whole one."""
        new, self._matched = self.text[self._matched :], len(self.text)
        for place, stop in enumerate(self._stop):
            borders, size = _borders(stop), self._begun[place]
            for letter in new:
                while size and stop[size] != letter:
                    size = borders[size - 1]
                size += stop[size] == letter
            self._begun[place] = size
        return max(self._begun, default=0)


@lru_cache(1024)  # those of all texts that a server writes at once, each with many stop strings
def _borders(text: str) -> tuple[int, ...]:
    """For each beginning of a text, the length of the longest shorter one that it ends with (Knuth,
    Morris and Pratt)."""
    borders, size = [0], 0
    for letter in text[1:]:
        while size and text[size] != letter:
            size = borders[size - 1]
        size += text[size] == letter
        borders.append(size)
    return tuple(borders)
