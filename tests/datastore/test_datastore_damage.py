"""Datastores after bit flips, power failures and kills, and beside files of other programs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Never
from zlib import crc32

import numpy as np
import pytest
from tests.datastore.test_datastore_store import MARK, OTHER, TEXTS, known

from paceline.datastore import Datastore, clear_datastore, log_file
from paceline.datastore import store as module
from paceline.errors import StoreError

HEAD = 40  # bytes of a log before its documents
LOGGED = [[5, 5, 5], [6], [1, 2, 8, 9], [6, 6], [7, 7, 7, 7, 7]]
ENDS = [HEAD + end for end in np.cumsum([8 + 4 * len(text) for text in LOGGED]).tolist()]
BEGINS = [HEAD, *ENDS[:-1]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Datastore(tmp_path / "store", MARK).build(TEXTS)
    Datastore(tmp_path / "store", MARK).add(LOGGED)
    return tmp_path / "store"


def record(tokens: list[int]) -> bytes:
    data = np.array(tokens, dtype="<i4").tobytes()
    return len(tokens).to_bytes(4, "little") + crc32(data).to_bytes(4, "little") + data


def flipped(content: bytes, *places: int, bits: int = 1) -> bytes:
    changed = bytearray(content)
    for at in places:
        changed[at] ^= bits
    return bytes(changed)


@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_damage_hides_one_document_wherever_it_is(folder: Path, bits: int) -> None:
    log = folder / "log"
    whole = log.read_bytes()
    assert len(whole) == ENDS[-1]
    for at in range(HEAD, len(whole)):
        log.write_bytes(flipped(whole, at, bits=bits))
        hit = next(number for number, end in enumerate(ENDS) if at < end)
        left = [*TEXTS, *LOGGED[:hit], *LOGGED[hit + 1 :]]
        store = Datastore(folder, MARK)
        assert known(store) == left, at
        store.add([[8]])
        assert known(store) == known(Datastore(folder, MARK)) == [*left, [8]], at


def test_what_follows_damaged_counts_goes_into_the_index(folder: Path) -> None:
    log = folder / "log"
    content = flipped(log.read_bytes(), BEGINS[0] + 2, BEGINS[1] + 3, BEGINS[3])
    log.write_bytes(content[:-1])  # and the last one is not whole
    Datastore(folder, MARK).build()
    assert known(Datastore(folder, MARK)) == [*TEXTS, LOGGED[2]]
    assert Datastore(folder, MARK).info().logged == 0


def test_every_whole_record_is_found_and_nothing_else() -> None:
    """Against the crc of each part, one by one."""
    random = np.random.default_rng(3)
    for _ in range(40):
        parts = [
            record(random.integers(0, 9, random.integers(1, 9)).tolist())
            if random.random() < 0.5
            else random.integers(0, 9, random.integers(0, 9)).astype("<u4").tobytes()
            for _ in range(12)
        ]
        data = random.bytes(5) + b"".join(parts) + random.bytes(int(random.integers(0, 5)))
        found = log_file.records_after(data, 5)
        places = range(5, len(data) - 8, 4)
        assert found == [at for at in places if log_file._document(data, at) is not None]
        assert len(found) >= sum(log_file._document(part, 0) is not None for part in parts)


def test_to_look_behind_damage_takes_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each token could be the count of a record that reaches far."""
    checked: list[int] = []

    def counting(data: bytes, *known: int) -> int:
        checked.append(len(data))
        return crc32(data, *known)

    monkeypatch.setattr(log_file, "crc32", counting)
    count = 4000
    tokens = list(range(count // 2, 0, -1)) * 2
    data = flipped(record(tokens), 0) + record([1])
    documents, end = log_file._read(data, 0)
    assert [document.tolist() for document in documents] == [[1]] and end == len(data)
    assert sum(checked) < 4 * len(data)


@pytest.mark.parametrize("size", [4, 8, 12, 4096])
def test_zeros_after_a_power_failure_are_no_documents(folder: Path, size: int) -> None:
    whole = (folder / "log").read_bytes()
    (folder / "log").write_bytes(whole + bytes(size))
    store = Datastore(folder, MARK)
    assert known(store) == [*TEXTS, *LOGGED]
    store.add([[8]])
    assert (folder / "log").read_bytes() == whole + record([8])


@pytest.mark.parametrize("vocabulary", [MARK, ""])
@pytest.mark.parametrize("content", [b"my notes\n", b"PLALOG02", b"\0" * 20])
def test_a_short_file_of_another_program_is_no_log(
    tmp_path: Path, content: bytes, vocabulary: str
) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged, or a file of another program: name another"):
        Datastore(tmp_path, vocabulary)
    assert log.read_bytes() == content


def test_a_head_that_was_not_written_to_its_end_is_finished(tmp_path: Path) -> None:
    head = b"PLALOG01" + MARK.encode()
    for size in range(HEAD + 1):
        (tmp_path / "log").write_bytes(head[:size])
        assert known(Datastore(tmp_path, "")) == []
        Datastore(tmp_path, MARK).add([[8]])
        assert (tmp_path / "log").read_bytes() == head + record([8])
    (tmp_path / "log").write_bytes(head[:20])
    with pytest.raises(StoreError, match="another tokenizer"):
        Datastore(tmp_path, OTHER)


@pytest.mark.parametrize("vocabulary", [MARK, ""])
@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": "4"},
        {"tokens": -1, "places": 7},
        {"tokens": 5},
        {"tokens": 7, "places": 0},
        {"places": None},
        {"documents": 2.0},
        {"largest": 8},
        {"largest": "9"},
        {"most": "many"},
        {"most": 0},
        {"vocabulary": 5},
        {"vocabulary": None},
    ],
)
def test_an_index_that_says_what_cannot_be_is_damaged_though_its_hash_fits(
    tmp_path: Path, changes: dict[str, Any], vocabulary: str
) -> None:
    header = {"vocabulary": MARK, "tokens": 4, "places": 2, "documents": 2, "largest": 9}
    text = json.dumps({**header, **changes}).encode().ljust(176)
    numbers = np.array([5, 9, -1, 8, 0, 3], dtype="<i4")
    content = b"PLINDEX1" + len(text).to_bytes(8, "little") + text + numbers.tobytes()
    (tmp_path / "index").write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(StoreError, match="is damaged: delete it"):
        Datastore(tmp_path, vocabulary)


@pytest.mark.parametrize("lock", [".lock", ".merging"])
def test_a_lock_does_not_make_a_datastore_of_other_files(tmp_path: Path, lock: str) -> None:
    names = [lock, "index", "log", ".index.new", ".log." + "0" * 16]
    for name in names:
        (tmp_path / name).write_bytes(b"" if name == lock else b"of another program")
    for name in names[1:]:
        with pytest.raises(StoreError, match="holds no datastore: name another folder"):
            clear_datastore(tmp_path)
        assert (tmp_path / name).read_bytes() == b"of another program"
        (tmp_path / name).write_bytes(b"")
    assert clear_datastore(tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".merging"}


@pytest.mark.parametrize("name", ["index", "log"])
def test_one_file_that_is_ours_is_enough_to_clear(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"damaged at its begin")
    with pytest.raises(StoreError, match="is damaged"):
        Datastore(folder, MARK)
    clear_datastore(folder)
    assert known(Datastore(folder, MARK)) == []


class Killed(BaseException):
    """In place of a signal."""


def killed(*_: Any) -> Never:
    raise Killed


def kill_merge(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, add: bool
) -> None:
    """Kill a build at a step, after another process has added a document meanwhile."""
    sort, other = module.sort_places, Datastore(folder, MARK)

    def sort_late(tokens: Any) -> Any:
        if add:
            other.add([[11, 12]])
        return sort(tokens)

    with monkeypatch.context() as patch:
        patch.setattr(module, "sort_places", sort_late)
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            Datastore(folder, MARK).build([[10]])


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("next_step", ["add", "build", "clear"])
def test_a_merge_killed_before_it_cuts_the_log_counts_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, next_step: str, add: bool
) -> None:
    long_open = Datastore(folder, MARK)
    kill_merge(folder, monkeypatch, log_file.Log, "drop", add)
    left = [[11, 12]] * add
    everything = [*TEXTS, *LOGGED, [10], *left]
    for vocabulary in (MARK, ""):
        store = Datastore(folder, vocabulary)
        assert known(store) == everything
        assert store.info().documents == len(everything)
        assert store.info().logged == 2 * add
    if next_step == "add":
        # Of what it includes already, too: it is new again.
        for one in (long_open, store := Datastore(folder, MARK), Datastore(folder, MARK)):
            one.add([[5, 5, 5]])
            everything.append([5, 5, 5])
            assert known(one) == known(Datastore(folder, MARK)) == everything
        store.add([])
        assert known(store) == everything
    elif next_step == "build":
        Datastore(folder, MARK).build([[13]])
        # What came meanwhile is in the index now.
        assert known(Datastore(folder, MARK)) == [*everything, [13]]
    else:
        clear_datastore(folder)
        assert known(Datastore(folder, MARK)) == []
    assert not list(folder.glob(".log.*"))


def test_a_merge_killed_before_its_index_is_there_leaves_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_merge(folder, monkeypatch, module, "put_in_place", True)
    everything = [*TEXTS, *LOGGED, [11, 12]]
    assert known(Datastore(folder, MARK)) == everything
    Datastore(folder, MARK).add([[13]])
    assert known(Datastore(folder, MARK)) == [*everything, [13]]
    Datastore(folder, MARK).build()
    assert known(Datastore(folder, MARK)) == [*everything, [13]]
    assert not list(folder.glob(".log.*"))


def test_a_merge_that_changes_nothing_may_be_killed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index that it makes is the one that is there."""
    Datastore(tmp_path, MARK).build([[1, 2]])
    for owner, name in ((module, "put_in_place"), (log_file.Log, "drop")):
        Datastore(tmp_path, MARK).add([[1, 2]])
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(Killed):
                Datastore(tmp_path, MARK).build()
        assert known(Datastore(tmp_path, MARK)) == [[1, 2]]
        Datastore(tmp_path, MARK).add([[3]])
        assert known(Datastore(tmp_path, MARK)) == [[1, 2], [3]]
        Datastore(tmp_path, MARK).build([[1, 2]], 3)
        assert known(Datastore(tmp_path, MARK)) == [[1, 2]]


def test_who_reads_while_the_log_is_cut_sees_everything_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop, seen = log_file.Log.drop, []

    def looked(log: log_file.Log, index: str) -> None:
        seen.append(known(Datastore(folder, MARK)))
        drop(log, index)

    monkeypatch.setattr(log_file.Log, "drop", looked)
    Datastore(folder, MARK).build()
    assert seen == [[*TEXTS, *LOGGED]]
