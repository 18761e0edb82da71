"""Which texts the cache holds, and where: open texts, and what remains of closed ones.

An open text keeps its stretch of the pool until it outgrows it; it is not copied when others come
and go. Stretches of closed texts stay while there is room; the least recently used are evicted
first. A text that begins like one of them need not read that beginning again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from paceline.prefix import common_prefix
from paceline.records import Path
from paceline.targets.kv_cache import TreeCache

KEPT_BYTES = 512 << 20

_GRAIN = 256
# A closed text that would lose at most this many tokens, such as a template's end or a cut answer,
# gives its stretch to the new text that shares its beginning; otherwise the beginning is copied.
_LITTLE = 64
# A text that outgrows its stretch gets this much more than it needs, to outgrow it seldom.
_SPARE = 1 / 4
# Each new text is compared with all that are kept.
_MOST_KEPT = 64


@dataclass(eq=False)
class TextSlot:
    """One text.

    start: of its stretch of the pool; capacity: slots there. cached: tokens already read.
    pending: tokens to read, the root last. tree_at: slot of the first node of its last tree; None
    if no pass has read one here.
    """

    cached: list[int]
    pending: list[int] = field(default_factory=list)
    start: int = 0
    capacity: int = 0
    tree_at: int | None = None

    def have_read(self, count: int) -> None:
        """Mark the first `count` pending tokens as cached."""
        self.cached += self.pending[:count]
        del self.pending[:count]


class TextSlots:
    """The texts of a target in one `TreeCache`.

    layers, hidden_size: of the cache. grain: passes attend to a multiple of this many slots.
    kept_bytes: most bytes of closed texts. room: initial slots of the pool.
    """

    def __init__(
        self, layers: int, hidden_size: int, grain: int, kept_bytes: int, room: int = 0
    ) -> None:
        self.cache = TreeCache(layers, hidden_size)
        self._kept_bytes = kept_bytes
        self._first_room = room
        self._grain = max(grain, _GRAIN)  # stretches begin and end at multiples of it
        self._open: dict[int, TextSlot] = {}
        self._kept: list[TextSlot] = []  # least recently used first
        self._opened = 0

    def __getitem__(self, slot: int) -> TextSlot:
        """Return an open text; raises KeyError for a closed one."""
        return self._open[slot]

    def as_json(self) -> dict[str, int]:
        """Report the pool's slots, how many of them open texts have, and the bytes of a slot."""
        in_use = sum(text.capacity for text in list(self._open.values()))
        return {"slot_bytes": self.cache.slot_bytes, "slots": self.cache.slots, "in_use": in_use}

    def take_over(self, others: TextSlots) -> None:
        """Open the open texts of `others` under the same numbers, to be read again in full."""
        self._opened = others._opened
        for slot, text in others._open.items():
            self._open[slot] = TextSlot([], [*text.cached, *text.pending])

    def open(self, context: Sequence[int]) -> int:
        """See `Target.open`."""
        source, shared = self._longest(context)
        text = TextSlot(list(context[:shared]), list(context[shared:]))
        if source in self._kept and len(source.cached) - shared <= _LITTLE:
            self._kept.remove(source)
            text.start, text.capacity = source.start, source.capacity
        elif source is not None:
            self._copy(source, text, len(context))
        slot, self._opened = self._opened, self._opened + 1
        self._open[slot] = text
        return slot

    def adopt(self, slot: int, others: TextSlots) -> None:
        """Fill pending tokens' keys and values from the text that shares the longest beginning.

        others: of another target, whose keys and values are valid here. Both caches have memory.
        """
        text = self._open[slot]
        known = len(text.cached)
        source, shared = others._longest([*text.cached, *text.pending])
        if source is not None and shared > known:
            self._make_room(slot, shared - known)
            self.cache.take(others.cache, source.start + known, text.start + known, shared - known)
            text.have_read(shared - known)

    def close(self, slot: int) -> None:
        """See `Target.close`."""
        text = self._open.pop(slot)
        if not text.cached:
            if not self.cache.slot_bytes and self._gaps() == {0: self.cache.slots}:
                # Perhaps there was not memory for so many slots, but is for fewer.
                self.cache.restart()
            return
        # The new one has all that its beginnings have.
        others = [each for each in self._kept if each.cached != text.cached[: len(each.cached)]]
        self._kept = [*others, text]
        # The last one stays whatever its size: its next turn, or a correction, is likeliest next.
        while len(self._kept) > 1 and self._is_full:
            del self._kept[0]

    def forget(self) -> None:
        """See `Target.forget`."""
        self._kept.clear()

    def make_room(self, rows: Mapping[int, int]) -> None:
        """Make room in the stretches for `rows` beyond what is cached, by slot."""
        new = sum(
            self._rounded(len(self._open[slot].cached) + more)
            for slot, more in rows.items()
            if not self._open[slot].capacity
        )
        free = sum(end - start for start, end in self._gaps().items()) if new else 0
        if new > free:  # grow once, since growing moves the whole pool
            with suppress(torch.OutOfMemoryError):  # then texts grow it one by one, as they can
                self._grow(new)
        for slot, more in rows.items():
            self._make_room(slot, more)

    def _make_room(self, slot: int, rows: int) -> None:
        text = self._open[slot]
        needed = len(text.cached) + rows
        if needed <= text.capacity:
            return
        end, length = text.start + text.capacity, self._rounded(needed)
        if text.capacity and self._gaps()[end] >= text.start + length:
            text.capacity = length
            return
        start, capacity = self._room(needed + int(needed * _SPARE) if text.capacity else needed)
        self.cache.take(self.cache, text.start, start, len(text.cached))
        text.start, text.capacity = start, capacity

    def rewind(self, slot: int, kept: int, tokens: Sequence[int]) -> TextSlot:
        """Keep the first `kept` tokens of a text, append these, and leave at least one to read."""
        text = self._open[slot]
        cached = min(kept, len(text.cached), kept + len(tokens) - 1)
        text.pending = [*[*text.cached[cached:], *text.pending][: kept - cached], *tokens]
        del text.cached[cached:]
        return text

    def commit(self, paths: Mapping[int, Path]) -> None:
        """See `Target.commit`."""
        moves = list[tuple[int, int]]()
        for slot, path in paths.items():
            if (tree_at := self._open[slot].tree_at) is not None:
                # Where the path begins like the tree, rows are already in place.
                steps = [step for step in enumerate(path.nodes) if step[0] != step[1]]
                moves += [(tree_at + node, tree_at + place) for place, node in steps]
        if moves:
            self.cache.move(*zip(*moves))
        for slot, path in paths.items():
            text = self._open[slot]
            if text.tree_at is None:  # taken over between the pass and this: all is read again
                text.pending += path.tokens
            else:
                text.cached += [*text.pending, *path.tokens[:-1]]
                text.pending = [path.tokens[-1]]

    def states(self, slot: int) -> torch.Tensor:
        """See `Target.states`."""
        text = self._open[slot]
        return self.cache.states(text.start, len(text.cached))

    @property
    def _is_full(self) -> bool:
        held = sum(text.capacity for text in self._kept) * self.cache.slot_bytes
        return len(self._kept) > _MOST_KEPT or held > self._kept_bytes

    def _longest(self, context: Sequence[int]) -> tuple[TextSlot | None, int]:
        """Find the text that shares most tokens with `context`, preferring closed ones; and their
        number, without the root, which is never in the cache."""
        best: tuple[TextSlot | None, int] = None, 0
        for text in [*reversed(self._kept), *self._open.values()]:
            shared = min(common_prefix(text.cached, context), len(context) - 1)
            if shared > best[1]:
                best = text, shared
            if shared == len(context) - 1:
                break
        return best

    def _copy(self, source: TextSlot, text: TextSlot, length: int) -> None:
        """Give a new text its own stretch, and copy the shared beginning into it."""
        if source in self._kept:  # just used, so evicted last
            self._kept.remove(source)
            self._kept.append(source)
        text.start, text.capacity = self._room(length, sparing=source)
        self.cache.take(self.cache, source.start, text.start, len(text.cached))

    def _room(self, slots: int, sparing: TextSlot | None = None) -> tuple[int, int]:
        """Take a stretch; returns its start and length. Evicts closed texts once the pool is as
        large as it may grow for their sake."""
        length = self._rounded(slots)
        while True:
            for start, end in self._gaps().items():
                if end - start >= length:
                    return start, length
            kept = bool(self._kept) and self._kept[0] is not sparing
            if kept and self.cache.slots >= self._limit:
                del self._kept[0]
                continue
            try:
                self._grow(slots + self.cache.slots // 4)
            except torch.OutOfMemoryError:
                if not kept:
                    raise
                del self._kept[0]

    @property
    def _limit(self) -> int:
        """Slots that the pool may grow to for the sake of closed texts."""
        in_use = sum(text.capacity for text in self._open.values())
        return in_use + self._kept_bytes // max(1, self.cache.slot_bytes)

    def _grow(self, slots: int) -> None:
        more = max(slots, self._first_room)
        # Growing moves the pool, and a GPU's captures are lost: closed texts get all their room at
        # once. Before the first pass the bytes of a slot are unknown.
        if self._kept and self.cache.slot_bytes:
            more = max(more, self._limit - self.cache.slots)
        self.cache.reserve(max(self._gaps()) + self._rounded(more))

    def _rounded(self, slots: int) -> int:
        """Length of a stretch for `slots` slots."""
        return -(-slots // self._grain) * self._grain

    def _gaps(self) -> dict[int, int]:
        """Start -> end of what is free, perhaps nothing: before, between and after stretches."""
        texts = [*self._kept, *self._open.values()]
        held = sorted((text.start, text.start + text.capacity) for text in texts if text.capacity)
        starts, ends = [start for start, _ in held], [end for _, end in held]
        return dict(zip([0, *ends], [*starts, self.cache.slots]))
