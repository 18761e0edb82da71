"""Datastores in files: what they keep, who may use them, and what becomes of damaged ones."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interrupted import everywhere

from paceline.datastore import BORDER, Datastore, clear_datastore, documents
from paceline.datastore import store as module
from paceline.datastore.documents import RecentTexts
from paceline.errors import StoreError, UsageError

MARK, OTHER = "a" * 32, "b" * 32
TEXTS = [[1, 2, 3, 4], [2, 3, 9], [7]]


def known(store: Datastore) -> list[list[int]]:
    """All documents: those of the index first."""
    texts = [*module._documents(store._index.tokens), *store._log.documents]
    return [text.tolist() for text in texts]


def settle(store: Datastore) -> None:
    """Wait for the merge of its log into the index, which it has started."""
    assert store._merger is not None
    store._merger.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Datastore(tmp_path / "store", MARK).build(TEXTS)
    return tmp_path / "store"


def test_what_was_built_is_found_again(folder: Path) -> None:
    store = Datastore(folder, MARK)
    assert known(store) == TEXTS
    info = store.info()
    assert (info.documents, info.tokens, info.logged, store.largest) == (3, 8, 0, 9)
    assert info.bytes == sum(path.stat().st_size for path in folder.glob("[il]*"))
    (array,) = store.arrays()
    assert array.look_up([8, 2, 3], 5).tree.tokens == (9, 4)


def test_nothing_is_matched_or_proposed_across_documents(folder: Path) -> None:
    (array,) = Datastore(folder, MARK).arrays()
    assert array.look_up([4], 5).matched == array.look_up([9], 5).matched == 0
    assert array.look_up([3, 4, 2], 5).matched == 1
    tree = array.look_up([1], 9).tree
    assert tree.tokens == (2, 3, 4) and BORDER not in tree.tokens


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    store = Datastore(tmp_path / "none", MARK)
    assert store.arrays() == [] and store.info().tokens == 0 and store.largest == -1
    assert not (tmp_path / "none").exists()


def test_a_datastore_may_be_empty(tmp_path: Path) -> None:
    Datastore(tmp_path, MARK).build([[], []])
    assert Datastore(tmp_path, MARK).arrays() == []
    Datastore(tmp_path, MARK).build([[5]])
    assert Datastore(tmp_path, MARK).arrays() == [] and Datastore(tmp_path, MARK).largest == 5


def test_what_is_added_is_in_the_log_until_it_is_built(folder: Path) -> None:
    Datastore(folder, MARK).add([[1, 2, 8], [], [6, 6]])
    store = Datastore(folder, MARK)
    assert known(store) == [*TEXTS, [1, 2, 8], [6, 6]]
    assert (store.info().documents, store.info().tokens, store.info().logged) == (5, 13, 5)
    assert Datastore(folder, "").info() == store.info()
    recent, old = store.arrays()
    assert recent.look_up([1, 2], 1).tree.tokens == (8,)
    assert old.look_up([1, 2], 1).tree.tokens == (3,)
    Datastore(folder, MARK).build()
    assert known(Datastore(folder, MARK)) == [*TEXTS, [1, 2, 8], [6, 6]]
    assert Datastore(folder, MARK).info().logged == 0
    assert known(store) == [*TEXTS, [1, 2, 8], [6, 6]]  # still mapped


def test_a_long_log_goes_into_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_LOGGED", 4)
    Datastore(folder, MARK).add([[5, 5, 5]])
    assert Datastore(folder, MARK).info().logged == 3
    store = Datastore(folder, MARK)
    store.add([[6]])
    settle(store)
    assert Datastore(folder, MARK).info().logged == store.info().logged == 0
    assert known(store) == known(Datastore(folder, MARK)) == [*TEXTS, [5, 5, 5], [6]]


def test_a_text_that_comes_again_is_kept_once_and_is_new(folder: Path) -> None:
    Datastore(folder, MARK).build([TEXTS[0]])
    assert known(Datastore(folder, MARK)) == [*TEXTS[1:], TEXTS[0]]


@pytest.mark.parametrize(
    ("most", "kept"), [(11, TEXTS), (10, TEXTS[1:]), (6, TEXTS[1:]), (5, TEXTS[2:]), (2, [[7]])]
)
def test_beyond_the_limit_the_oldest_texts_go(tmp_path: Path, most: int, kept: object) -> None:
    Datastore(tmp_path, MARK).build(TEXTS, most)
    assert known(Datastore(tmp_path, MARK)) == kept


def test_a_limit_holds_for_what_is_added_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 5)
    monkeypatch.setattr(module, "_MOST_LOGGED", 1)
    for limit, kept in ((11, TEXTS), (6, TEXTS[1:])):
        folder = tmp_path / str(limit)
        Datastore(folder, MARK).build([], limit)
        for one in TEXTS:
            added = Datastore(folder, MARK)
            added.add([one])
            settle(added)
        assert known(Datastore(folder, MARK)) == kept
    Datastore(folder, MARK).build([], 5)
    assert known(Datastore(folder, MARK)) == TEXTS[2:]


def test_of_a_text_beyond_the_limit_the_end_is_kept(tmp_path: Path) -> None:
    Datastore(tmp_path, MARK).build([[1, 2, 3, 4, 5]], 3)
    assert known(Datastore(tmp_path, MARK)) == [[3, 4, 5]]


@pytest.mark.parametrize("most", [0, -2])
def test_a_limit_leaves_room_for_a_token(folder: Path, most: int) -> None:
    with pytest.raises(UsageError, match=f"most is {most}: give a number of tokens above 0"):
        Datastore(folder, MARK).build([[1, 2, 3, 4, 5]], most)
    assert known(Datastore(folder, MARK)) == TEXTS
    Datastore(folder, MARK).build([[1, 2, 3, 4, 5]], 1)
    assert known(Datastore(folder, MARK)) == [[5]]


def test_ids_of_another_tokenizer_are_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="another tokenizer"):
        Datastore(folder, OTHER)
    clear_datastore(folder)
    Datastore(folder, MARK).add([[1, 2]])
    with pytest.raises(StoreError, match="another tokenizer"):
        Datastore(folder, OTHER)


@pytest.mark.parametrize("wrong", [[-1], [1, 2**31], [BORDER]])
def test_ids_that_cannot_be_are_refused(folder: Path, wrong: list[int]) -> None:
    for change in (Datastore(folder, MARK).add, Datastore(folder, MARK).build):
        with pytest.raises(UsageError, match="token id"):
            change([wrong])
    assert known(Datastore(folder, MARK)) == TEXTS


@pytest.mark.parametrize("wrong", [[[1, 2]], [1.5], ["a"], 5, None, [10**30]])
def test_what_is_no_document_is_refused(folder: Path, wrong: Any) -> None:
    store = Datastore(folder, MARK)
    with pytest.raises(UsageError, match="a list of token ids"):
        store.add([wrong])
    assert known(store) == TEXTS and len(store.arrays()) == 1


@pytest.mark.parametrize("what", ["exists", "stat"])
def test_files_may_vanish_while_they_are_looked_at(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process clears the datastore between two looks at a file."""
    store, look = Datastore(folder, MARK), getattr(Path, what)

    def looked(path: Path, **options: bool) -> Any:
        seen = look(path, **options)
        if path.name in ("index", "log"):
            path.unlink(missing_ok=True)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(Path, what, looked)
        assert Datastore(folder, MARK).info().documents in (0, 3)
        assert store.info().documents == 3


def test_any_damage_to_an_index_is_seen(folder: Path) -> None:
    whole = (folder / "index").read_bytes()
    for at in [*range(0, len(whole), 7), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        (folder / "index").write_bytes(damaged)
        with pytest.raises(StoreError, match="is damaged") as refused:
            Datastore(folder, MARK)
        assert "\n" not in str(refused.value)
    for size in (0, 1, 40, len(whole) // 2, len(whole) - 4):
        (folder / "index").write_bytes(whole[:size])
        with pytest.raises(StoreError, match="is damaged"):
            Datastore(folder, MARK)
    assert clear_datastore(folder) == len(whole) - 4
    assert Datastore(folder, MARK).arrays() == []


def test_only_datastores_are_cleared_drafts_included(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "repository"
    other.mkdir()
    (other / "index").write_bytes(b"DIRC of another program")
    with pytest.raises(StoreError, match="holds no datastore"):
        clear_datastore(other)
    assert [path.name for path in other.iterdir()] == ["index"]
    for name in (".index.new", ".log.new"):  # as a killed process leaves them
        (folder / name).write_bytes(b"private")
    clear_datastore(folder)
    assert not [path.name for path in folder.iterdir() if not path.name.startswith((".lock", ".m"))]


def test_of_a_damaged_log_the_whole_documents_are_kept(folder: Path) -> None:
    log = folder / "log"
    for text in ([5, 5], [6, 6, 6]):
        Datastore(folder, MARK).add([text])
    whole = log.read_bytes()
    log.write_bytes(whole[:-3])  # killed while writing
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5]]
    Datastore(folder, MARK).add([[8]])
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5], [8]]
    changed = bytearray(whole)
    changed[-1] ^= 1
    log.write_bytes(changed)
    assert known(Datastore(folder, MARK)) == [*TEXTS, [5, 5]]
    changed = bytearray(whole)
    changed[48] ^= 1  # in the first document
    log.write_bytes(changed)
    assert known(Datastore(folder, MARK)) == [*TEXTS, [6, 6, 6]]
    Datastore(folder, MARK).add([[8]])
    assert known(Datastore(folder, MARK)) == [*TEXTS, [6, 6, 6], [8]]
    log.write_bytes(b"something else, which is longer than a beginning")
    with pytest.raises(StoreError, match="log is damaged"):
        Datastore(folder, MARK)
    log.write_bytes(whole[:9])  # killed before the first document
    assert known(Datastore(folder, MARK)) == TEXTS
    Datastore(folder, MARK).add([[8]])
    assert known(Datastore(folder, MARK)) == [*TEXTS, [8]]


def test_a_build_that_was_killed_leaves_what_was_there(folder: Path) -> None:
    (folder / ".index.new").write_bytes(b"half of it")
    assert known(Datastore(folder, MARK)) == TEXTS
    Datastore(folder, MARK).build([[8]])
    assert known(Datastore(folder, MARK)) == [*TEXTS, [8]]


def write_texts(folder: Path, who: int, keeps_open: bool) -> None:
    store = Datastore(folder, MARK)
    for number in range(20):
        store = store if keeps_open else Datastore(folder, MARK)
        store.add([[who, number]])
        if number % 5 == 4:
            store.build()


@pytest.mark.parametrize("keeps_open", [False, True])
def test_two_processes_may_write_at_once(folder: Path, keeps_open: bool) -> None:
    start = multiprocessing.get_context("fork").Process  # importing takes seconds
    running = [start(target=write_texts, args=(folder, who, keeps_open)) for who in (100, 200)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert [each.exitcode for each in running] == [0, 0]
    written = [tuple(text) for text in known(Datastore(folder, MARK))]
    expected = {(who, n) for who in (100, 200) for n in range(20)} | set(map(tuple, TEXTS))
    assert set(written) == expected and len(written) == len(expected)


def test_who_adds_sees_what_others_did_meanwhile(folder: Path) -> None:
    one, other = Datastore(folder, MARK), Datastore(folder, MARK)
    one.add([[11, 12]])
    other.add([[13, 14, 15]])
    one.add([[16]])
    assert known(one) == known(Datastore(folder, MARK)) == [*TEXTS, [11, 12], [13, 14, 15], [16]]
    other.build([[17]])
    assert known(one)[3:] == [[11, 12], [13, 14, 15], [16]]  # until it looks again
    one.add([[18]])
    assert known(one) == known(Datastore(folder, MARK))
    assert known(one)[3:] == [[11, 12], [13, 14, 15], [16], [17], [18]]


def test_a_log_that_took_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    one = Datastore(tmp_path, MARK)
    one.add([[1, 2], [3, 4]])
    clear_datastore(tmp_path)
    Datastore(tmp_path, MARK).add([[5, 6], [7, 8], [9, 10]])
    one.add([[11]])
    assert known(one) == known(Datastore(tmp_path, MARK)) == [[5, 6], [7, 8], [9, 10], [11]]
    assert one.arrays()[0].look_up([1], 4).matched == 0
    clear_datastore(tmp_path)
    one.add([[12]])
    assert known(one) == known(Datastore(tmp_path, MARK)) == [[12]]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="cannot change the datastore"):
        Datastore(tmp_path / "file" / "below", MARK).build([[1]])


def test_numbers_are_stored_little_endian(folder: Path) -> None:
    content = (folder / "index").read_bytes()
    assert np.array([1, 2, 3, 4, BORDER], dtype="<i4").tobytes() in content


def test_an_index_is_read_as_it_always_was(tmp_path: Path) -> None:
    """Written by hand, as the description of the file says."""
    header = {"vocabulary": MARK, "tokens": 4, "places": 2, "documents": 2, "largest": 9}
    text = json.dumps(header).encode().ljust(112)
    numbers = np.array([5, 9, BORDER, 9, 0, 3], dtype="<i4")
    content = b"PLINDEX1" + len(text).to_bytes(8, "little") + text + numbers.tobytes()
    (tmp_path / "index").write_bytes(content + hashlib.sha256(content).digest())
    Datastore(tmp_path, MARK).add([[7]])
    assert known(Datastore(tmp_path, MARK)) == [[5, 9], [9], [7]]


def test_only_the_owner_can_read_what_was_said_and_permissions_stay(tmp_path: Path) -> None:
    store = Datastore(tmp_path, MARK)
    store.build(TEXTS)
    store.add([[5, 6]])
    files = [path for path in tmp_path.iterdir() if path.stat().st_size]
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    (tmp_path / "index").chmod(0o640)
    store.build([[8, 9]])
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o640


def test_what_was_merged_is_mapped_as_others_have_it(tmp_path: Path) -> None:
    store = Datastore(tmp_path, MARK)
    store.build(TEXTS)
    assert not store._index.tokens.flags.owndata
    assert known(store) == TEXTS


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("a")
    for place, words in (
        (notes, "holds other files and no datastore"),
        (notes / "a.txt", "a file"),
    ):
        with pytest.raises(StoreError, match=words):
            Datastore(place, MARK)
    assert [each.name for each in notes.iterdir()] == ["a.txt"]


def test_an_interruption_anywhere_loses_no_recent_texts() -> None:
    texts = [np.arange(length, dtype=np.int32) for length in (9, 7, 8)]
    for interrupt in everywhere(documents):
        recent = RecentTexts()
        recent.pieces(texts[:1])
        interrupt(lambda recent=recent: recent.pieces(texts))
        assert sum(len(tokens) for tokens, _ in recent.pieces(texts)) == 9 + 1 + 7 + 1 + 8
