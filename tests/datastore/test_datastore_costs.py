"""What it costs to add to a datastore: what is read and sorted for it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.datastore import Datastore, documents, log_file
from paceline.datastore.sorting import sort_places

MARK = "a" * 32


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read from a log."""
    sizes: list[int] = []
    opened = log_file.open_private

    class Counting(io.BufferedRandom):
        def read(self, *size: Any) -> bytes:
            data = super().read(*size)
            sizes.append(len(data))
            return data

    def counting(path: Path, mode: str) -> Any:
        return Counting(io.FileIO(path, "r+")) if mode == "r+b" else opened(path, mode)

    monkeypatch.setattr(log_file, "open_private", counting)
    return sizes


def test_to_add_costs_what_is_added(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counted(tokens: Any) -> Any:
        sizes.append(len(tokens))
        return sort_places(tokens)

    monkeypatch.setattr(documents, "sort_places", counted)
    store, other = Datastore(tmp_path, MARK), Datastore(tmp_path, MARK)
    length, count = 50, 400
    for number in range(count):
        store.add([list(range(number, number + length))])
        store.arrays()
    # The last document is read again, to see that the log is the one that is known.
    assert len(read) > count and max(read) <= 4 * length + 8
    # A piece is sorted again once it has grown by a quarter of it.
    assert sum(sizes) < 16 * count * length
    assert len(store.arrays()) <= 6
    read.clear()
    other.add([[1]])
    assert sum(read) >= 4 * count * length
    read.clear()
    store.add([[2]])
    assert sum(read) <= 8 * length


def test_pieces_hold_what_one_array_holds(tmp_path: Path) -> None:
    store = Datastore(tmp_path, MARK)
    random = np.random.default_rng(5)
    for _ in range(150):
        store.add([random.integers(0, 50, random.integers(1, 120)).tolist()])
        store.arrays()
    pieces = store.arrays()
    assert len(pieces) > 1
    whole = [*Datastore(tmp_path, MARK).arrays()]
    assert len(whole) == 1
    for _ in range(200):
        tail = random.integers(0, 50, 3).tolist()
        longest = [
            max(each.look_up(tail, 4).matched for each in arrays) for arrays in (pieces, whole)
        ]
        assert longest[0] == longest[1]
