"""Batches: windows of tokens with the target's states; a step learns from all their places.

A window is packed with stretches of texts, so that little of a batch is padding. A stretch holds
some places of a text, the tokens before them as context, and those after them that guesses are
compared with. In an epoch every place of every text is in one stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from random import Random

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.targets.pass_inputs import Masks
from paceline.targets.support import attention_windows
from paceline.training.dataset import Dataset, Text
from paceline.training.settings import TrainerSettings
from paceline.training.state_cache import StateCache

_OPEN = 32  # windows filled at a time

# Values of padding.
_NUMBERS = {"tokens": 0, "greedy": 0, "text": -1, "source": -1, "position": 0, "start": 0}


@dataclass(frozen=True)
class Batch:
    """Windows packed with stretches of texts, one per row, padded at the end.

    states: [rows, length, taps + 1, hidden] in half precision, the last state last; those of the
    target after reading the token. The rest is [rows, length], int64 or, of the last two, bool:

    tokens; greedy: the target's likeliest one after each. text: number of the stretch in its row,
    source: of the text in its split; -1 for padding. position: the token's index in its text.
    start: where in the row its stretch begins.
    place: the target has read up to here, the next token (the root) is known, and head h guesses
    the token 2 + h further on. The first head's token always exists.
    own: the target wrote the token, or finds it likeliest.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    greedy: torch.Tensor
    text: torch.Tensor
    source: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor
    place: torch.Tensor
    own: torch.Tensor

    @property
    def last(self) -> torch.Tensor:
        """[rows, length, hidden] float32: what the output head reads."""
        return self.states[:, :, -1].float()

    def points(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Places by row, int64 [rows, n], and which of them are real, bool [rows, n]: rows with
        fewer are padded with their last position."""
        counts = self.place.sum(dim=1)
        most = int(counts.max())
        # A stable sort brings the places of a row to its beginning, in their order.
        order = torch.sort((~self.place).to(torch.int8), dim=1, stable=True).indices[:, :most]
        valid = torch.arange(most, device=order.device) < counts[:, None]
        return order.masked_fill(~valid, self.tokens.shape[1] - 1), valid

    def has(self, points: torch.Tensor, ahead: int) -> torch.Tensor:
        """Bool [rows, n]: whether the token `ahead` positions on belongs to the same stretch."""
        length = self.tokens.shape[1]
        there = self.text.gather(1, (points + ahead).clamp(max=length - 1))
        return (points + ahead < length) & (there == self.text.gather(1, points)) & (there >= 0)

    def after(self, values: torch.Tensor, points: torch.Tensor, ahead: int) -> torch.Tensor:
        """[rows, n, width]: the values [rows, length, width] `ahead` positions on; where a row ends
        before, those of its end."""
        at = (points + ahead).clamp(max=self.tokens.shape[1] - 1)
        return values.gather(1, at[..., None].expand(-1, -1, values.shape[-1]))

    def on_policy(self, points: torch.Tensor, ahead: int) -> torch.Tensor:
        """Bool [rows, n]: whether the next `ahead` tokens are all the target's own."""
        strange = (~self.own).long().cumsum(dim=1)
        end = (points + ahead).clamp(max=self.tokens.shape[1] - 1)
        return strange.gather(1, end) == strange.gather(1, points)

    def sees(self, points: torch.Tensor) -> torch.Tensor:
        """Bool [rows, n, length]: tokens of the same stretch up to and including each point."""
        places = torch.arange(self.tokens.shape[1], device=points.device)
        same = self.text[:, None, :] == self.text.gather(1, points)[:, :, None]
        return same & (places <= points[:, :, None])

    def sees_back(self, window: int | None) -> torch.Tensor:
        """Bool [rows, length, length]: which tokens each token sees: itself and those before it in
        its stretch, `window` at most."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        back = places[:, None] - places
        near = (back >= 0) & (back < (window or len(places)))
        return near & (self.text[:, :, None] == self.text[:, None, :])


@dataclass(frozen=True)
class Stretch:
    """Tokens `begin` to `end` of the text with number `text`; `places` are learned from."""

    text: int
    begin: int
    end: int
    places: range

    def __len__(self) -> int:
        return self.end - self.begin


Window = list[Stretch]
"""Stretches side by side in a row."""


def stretches(texts: Sequence[Text], settings: TrainerSettings) -> list[Stretch]:
    """Cut all texts into stretches, each no longer than a window."""
    found = []
    for number, text in enumerate(texts):
        place = text.first
        while place < text.places.stop:
            begin = max(text.begin, place + 1 - settings.context)
            # The last place has `ahead` tokens after it, unless the text ends earlier.
            stop = min(text.places.stop, begin + settings.length - settings.ahead)
            end = min(len(text.tokens), stop + settings.ahead)
            found.append(Stretch(number, begin, end, range(place, stop)))
            place = stop
    return found


def pack(found: Sequence[Stretch], length: int) -> list[Window]:
    """Pack stretches in this order into windows of at most `length` tokens: each goes into the
    open window that it fills best."""
    done: list[Window] = []
    opened: list[tuple[int, Window]] = []  # with the room left
    for stretch in found:
        fitting = [entry for entry in opened if entry[0] >= len(stretch)]
        best = min(fitting, key=itemgetter(0), default=(length, Window()))
        if fitting:
            opened.remove(best)
        opened.append((best[0] - len(stretch), [*best[1], stretch]))
        if len(opened) > _OPEN:
            fullest = min(opened, key=itemgetter(0))
            opened.remove(fullest)
            done.append(fullest[1])
    return done + [window for _, window in opened]


def endless(texts: Sequence[Text], settings: TrainerSettings, mark: str) -> Iterator[Window]:
    """Yield windows of some texts without end: every epoch holds all texts, packed anew, in an order
    that depends only on the seed and `mark`."""
    whole = stretches(texts, settings)
    for epoch in count():
        random = Random(f"{settings.seed} {mark} {epoch}")  # noqa: S311 - the same for everyone
        order = list(whole)
        random.shuffle(order)
        windows = pack(order, settings.length)
        random.shuffle(windows)
        yield from windows


def masks_of(
    model: PreTrainedModel, sees: Callable[[int | None], torch.Tensor], dtype: torch.dtype
) -> Masks:
    """Float masks [batch, 1, rows, slots] in the form that transformers takes; one per kind of
    layer if kinds differ.

    sees: most positions that a layer sees, its own included, None for all -> what each row may
    attend to, bool [batch, rows, slots].
    """
    masks = {}
    for kind, window in attention_windows(model.config.get_text_config()).items():
        hidden = ~sees(window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        masks[kind] = mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
    return masks if len(masks) > 1 else masks.popitem()[1]


@dataclass(frozen=True)
class Batches:
    """Makes batches of a dataset whose states are cached, on a device. A training batch depends only
    on the settings and the number of its step."""

    dataset: Dataset
    cache: StateCache
    settings: TrainerSettings
    device: torch.device

    def train(self, first: int) -> Iterator[Batch]:
        """Yield the batches of step `first` and all later ones, without end."""
        settings, data = self.settings, self.dataset
        reads = settings.read_rows if data.reads else 0
        kinds = [(data.train, "train", settings.rows - reads), (data.reads, "read", reads)]
        sources = [
            (texts, islice(endless(texts, settings, mark), first * rows, None), rows)
            for texts, mark, rows in kinds
            if rows
        ]
        while True:
            yield self._batch([(texts, [*islice(found, rows)]) for texts, found, rows in sources])

    def whole(self, texts: Sequence[Text]) -> Iterator[Batch]:
        """Yield batches with all places of some texts once, the same every time."""
        settings = self.settings
        windows = pack(stretches(texts, settings), settings.length)
        for first in range(0, len(windows), settings.rows):
            yield self._batch([(texts, windows[first : first + settings.rows])])

    def _batch(self, parts: Sequence[tuple[Sequence[Text], Sequence[Window]]]) -> Batch:
        rows = [(texts, window) for texts, windows in parts for window in windows]
        shape, cache = (len(rows), self.settings.length), self.cache
        numbers = {name: np.full(shape, empty, np.int64) for name, empty in _NUMBERS.items()}
        flags = {name: np.zeros(shape, bool) for name in ("place", "own")}
        layers = (len(cache.shape.taps) + 1, cache.shape.hidden)
        states = np.zeros((*shape, *layers), np.int16)
        for row, (texts, window) in enumerate(rows):
            first = 0
            for number, stretch in enumerate(window):
                text = texts[stretch.text]
                there = row, slice(first, first + len(stretch))
                kept = cache.get(text)
                piece = slice(stretch.begin - text.begin, stretch.end - text.begin)
                tokens, greedy = text.tokens[stretch.begin : stretch.end], kept.greedy[piece]
                states[there] = kept.states[piece]
                numbers["greedy"][there] = greedy
                numbers["tokens"][there] = tokens
                numbers["text"][there] = number
                numbers["source"][there] = stretch.text
                numbers["position"][there] = np.arange(stretch.begin, stretch.end)
                numbers["start"][there] = first
                shift, places = first - stretch.begin, stretch.places
                flags["place"][row, shift + places.start : shift + places.stop] = True
                # Only tokens after a place matter, so the prompt of an answer may count as own.
                flags["own"][there] = text.answer
                if not text.answer:
                    flags["own"][row, first + 1 : there[1].stop] = greedy[:-1] == tokens[1:]
                first += len(stretch)
        tensors = {name: torch.from_numpy(each) for name, each in {**numbers, **flags}.items()}
        tensors["states"] = torch.from_numpy(states).view(getattr(torch, cache.shape.dtype))
        return Batch(**{name: each.to(self.device) for name, each in tensors.items()})
