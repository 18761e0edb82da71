"""The log of a datastore goes into its index beside everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from filelock import FileLock
from tests.datastore.test_datastore_store import MARK, TEXTS, known, settle

from paceline.datastore import Datastore, clear_datastore
from paceline.datastore import store as module
from paceline.datastore.sorting import sort_places
from paceline.errors import MergeError, StoreError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Datastore(tmp_path / "store", MARK).build(TEXTS)
    return tmp_path / "store"


@pytest.fixture
def held_sorting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Logs are short, and sorting one says that it has begun and waits until it may go on."""
    begun, go = Event(), Event()

    def sort(tokens: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return sort_places(tokens)

    monkeypatch.setattr(module, "_MOST_LOGGED", 4)
    monkeypatch.setattr(module, "sort_places", sort)
    yield begun, go
    go.set()


def test_nobody_waits_for_a_log_to_go_into_the_index(
    folder: Path, held_sorting: tuple[Event, Event]
) -> None:
    begun, go = held_sorting
    store, other = Datastore(folder, MARK), Datastore(folder, MARK)
    store.add([[5, 5, 5, 5]])
    assert begun.wait(30)
    store.add([[6, 6]])
    other.add([[7, 7, 7]])
    assert known(store) == [*TEXTS, [5, 5, 5, 5], [6, 6]]
    go.set()
    settle(store)
    everything = [*TEXTS, [5, 5, 5, 5], [6, 6], [7, 7, 7]]
    assert known(store) == known(Datastore(folder, MARK)) == everything
    assert store.info().logged == 5, "what came meanwhile is in the log"
    other.add([[8]])
    assert known(other)[-2:] == [[7, 7, 7], [8]]


def test_what_is_cleared_while_it_is_sorted_does_not_come_back(
    folder: Path, held_sorting: tuple[Event, Event]
) -> None:
    begun, go = held_sorting
    store = Datastore(folder, MARK)
    store.add([[5, 5, 5, 5]])
    assert begun.wait(30)
    clearing = Thread(target=clear_datastore, args=(folder,))
    clearing.start()
    go.set()
    clearing.join()
    assert known(Datastore(folder, MARK)) == []


def test_an_index_that_cannot_be_written_is_told_once_and_tried_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_MOST_LOGGED", 4)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_draft", full)
        store = Datastore(folder, MARK)
        store.add([[5, 5, 5, 5]])
        settle(store)
        with pytest.raises(MergeError, match=r"No space left .*; its log holds all documents"):
            store.add([[6]])
        store.add([[9]])
    settle(store)
    assert store.info().logged == 6, "not at every text"
    store.add([[8, 8]])
    settle(store)
    assert store.info().logged == 0
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5, 5, 5], [6], [9], [8, 8]]


def test_a_merge_that_another_process_keeps_waiting_is_told_and_tried_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_LOGGED", 4)
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    store = Datastore(folder, MARK)
    with FileLock(folder / ".merging"):
        store.add([[5, 5, 5, 5]])
        settle(store)
        with pytest.raises(MergeError, match=r"another process .*; its log holds all documents"):
            store.add([[6]])
    with FileLock(folder / ".lock"), pytest.raises(StoreError, match="another process has locked"):
        store.add([[7]])
    store.add([[8, 8, 8]])
    settle(store)
    assert store.info().logged == 0
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5, 5, 5], [6], [8, 8, 8]]


def test_who_waited_in_vain_does_not_wait_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's texts end one after the other in one thread."""
    waited: list[float] = []

    def held(lock: Path, patience: float) -> Any:
        waited.append(patience)
        return real(lock, patience=min(patience, 0.01))

    real = module.held
    monkeypatch.setattr(module, "held", held)
    store = Datastore(folder, MARK)
    with FileLock(folder / ".lock"):
        for _ in range(3):
            with pytest.raises(StoreError, match="another process has locked"):
                store.add([[7]])
    store.add([[8]])
    store.add([[9]])
    assert waited == [30.0, 0.0, 0.0, 0.0, 30.0]
    assert store.info().documents == len(TEXTS) + 2


@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_gets_back_the_room_of_what_did_not_fit(
    folder: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the index, or of the log beside it."""
    fits = iter([True] * written)

    def sync(_: int) -> None:
        if not next(fits, False):
            raise OSError(28, "No space left on device")

    Datastore(folder, MARK).add([[5, 5]])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        with pytest.raises(StoreError, match="No space left"):
            Datastore(folder, MARK).build([[8]])
    assert not list(folder.glob(".*.new"))
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5]]


@pytest.mark.parametrize("step", ["bounded", "joined", "sort_places", "write_draft"])
def test_too_little_memory_is_one_sentence(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, step, full)
    with pytest.raises(StoreError, match=r"not enough memory to sort .* a smaller --limit"):
        Datastore(folder, MARK).build([[1, 2, 3]])


def test_what_is_merged_while_a_datastore_is_opened_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Datastore(folder, MARK)
    other.add([[5, 5]])
    read, merged = module.read_index, []

    def read_late(path: Path) -> Any:
        found = read(path)
        if not merged:
            merged.append(True)
            other.build()
        return found

    monkeypatch.setattr(module, "read_index", read_late)
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5]]
