"""Which texts of a batch draft in the next pass, and how much is read of the other prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.generation import Generation
from paceline.protocols import Target

PREFILL_ALONE = 1024
"""Most prompt tokens read in one pass while no text waits for its next token."""

# At most this many tokens before the root are read with the first tree, whatever else is running.
_FEW_PENDING = 8
# Waiting for another text's prefill pays from this many shared tokens on.
_WORTH_WAITING = 16


def sorted_texts(
    texts: Mapping[int, Generation], target: Target
) -> tuple[dict[int, Generation], dict[int, Generation]]:
    """The texts that draft in the next pass, and those whose prompts must be read first.

    Until a text has begun, none waits for its next token: the rest of the prompts is read with the
    first trees if it fits into one pass, otherwise all of it before any text is drafted for.
    """
    ready = _without_followers(texts, target)
    for text in ready.values():
        text.ahead = target.pending(text.slot)
        text.has_read = text.ahead > 0 or text.reading > 0
    if any(text.has_begun for text in ready.values()):
        writing = {key: text for key, text in ready.items() if text.ahead <= _FEW_PENDING}
    else:
        ahead = sum(text.ahead for text in ready.values())
        writing = ready if ahead <= PREFILL_ALONE and len(ready) == len(texts) else {}
    return writing, {key: text for key, text in ready.items() if key not in writing}


def pieces_within(room: int, waiting: Mapping[int, Generation]) -> dict[int, int]:
    """How much to read of each prompt, `room` tokens in all, first come, first served."""
    pieces = {}
    for key, text in waiting.items():
        if piece := min(room, text.ahead):
            pieces[key] = piece
            room -= piece
    return pieces


def tokens_read(text: Generation, target: Target) -> int:
    """How many of the text's tokens are in the cache."""
    return len(text.context) - 1 - target.pending(text.slot)


def begin_alike(one: Sequence[int], two: Sequence[int], count: int) -> bool:
    """Whether both texts begin with the same `count` tokens, none of them a root."""
    if count >= min(len(one), len(two)):
        return False
    # The last of them first: texts with a common system prompt usually part right after it.
    last = slice(max(0, count - _WORTH_WAITING), count)
    return one[last] == two[last] and one[:count] == two[:count]


def _without_followers(texts: Mapping[int, Generation], target: Target) -> dict[int, Generation]:
    """All texts but those that share a prefix with one whose prompt is being read: these wait until
    that prefix is read, and then take it over."""
    leaders: list[tuple[Generation, int]] = []
    kept = {}
    for key, text in texts.items():
        if target.pending(text.slot) >= _WORTH_WAITING:
            known = tokens_read(text, target)
            if any(
                begin_alike(text.context, leader.context, max(known, read) + _WORTH_WAITING)
                for leader, read in leaders
            ):
                text.follows = True
                continue
            if text.follows:
                _open_again(text, target)
            leaders.append((text, tokens_read(text, target)))
        kept[key] = text
    return kept


def _open_again(text: Generation, target: Target) -> None:
    """Take over what other texts have read since this one was opened."""
    text.follows = False
    try:
        slot = target.open(text.context)
    except Exception:  # it reads its prompt itself: if that fails, too, it fails alone
        return
    old, text.slot = text.slot, slot
    target.close(old)
    text.reused = tokens_read(text, target)
