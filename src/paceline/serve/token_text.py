"""Single tokens as text, for log-probabilities: a token alone may be part of a character."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from functools import cache, lru_cache
from typing import Any

__all__ = ["Places", "token_bytes", "token_text"]

_HALF = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_KEPT = 1 << 18
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Places:
    """Where the tokens of a text begin, in characters, by their bytes: a token that ends inside a
    character leaves the next one where that character begins."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def next(self, token: bytes) -> int:
        """The place of the next token."""
        place = self._length
        self._length += len(self._decoder.decode(token))
        return place


def token_text(tokenizer: Any, token: int) -> str:
    """A token as OpenAI writes it: its text, or "bytes:" and its bytes if these are no text."""
    found = token_bytes(tokenizer, token)
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


@lru_cache(_KEPT)
def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes of a token. Kept, as an answer may name the same tokens thousands of times."""
    piece = getattr(tokenizer, "convert_ids_to_tokens", lambda _: None)(token) or ""
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    if _SPACE in piece:  # decoding drops it at the beginning of a text
        return str(piece).replace(_SPACE, " ").encode("utf-8")
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if _HALF in text and all(letter in _byte_letters() for letter in piece):
        return bytes(_byte_letters()[letter] for letter in piece)
    return text.encode("utf-8")


@cache
def _byte_letters() -> dict[str, int]:
    """The byte for each letter of byte-level vocabularies: a printable byte is its own letter, and
    the others take the letters from 256 on in order (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}
