"""The file of a ReferenceStore: processes, threads, files that cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import StoreError
from paceline.references import ReferenceStore, database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "references.db"


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_only_the_owner_may_read(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("cats", "purr")
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _add_many(path: Path, name: str, count: int) -> None:
    with ReferenceStore(path) as store:
        for number in range(count):
            store.add(f"{name} {number}", f"output {name} {number}")
            store.search("left right")


@pytest.mark.parametrize("existing", [False, True])
def test_two_processes_lose_nothing(path: Path, existing: bool) -> None:
    if existing:
        ReferenceStore(path).close()
    context = multiprocessing.get_context("fork")  # importing takes seconds
    workers = [
        context.Process(target=_add_many, args=(path, name, 60)) for name in ("left", "right")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    with ReferenceStore(path) as store:
        assert len(store) == 120
        assert store.search("left 59", 1)[0].output == "output left 59"


def run_all(jobs: Sequence[Callable[[], object]]) -> list[BaseException]:
    failures: list[BaseException] = []
    gate = threading.Barrier(len(jobs))

    def work(job: Callable[[], object]) -> None:
        try:
            gate.wait()
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_threads_share_a_store(path: Path) -> None:
    with ReferenceStore(path) as store:

        def add(name: str) -> None:
            for number in range(40):
                store.add(f"{name} {number}", "output")
                assert store.search(name)

        assert run_all([lambda name=name: add(name) for name in "abcd"]) == []  # type: ignore[misc]
        assert len(store) == 160


def test_opening_at_once_makes_one_file(path: Path) -> None:
    assert run_all([lambda: ReferenceStore(path).close()] * 8) == []
    assert len(ReferenceStore(path)) == 0


def test_text_that_a_reader_holds_on_disk_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)
    with ReferenceStore(path) as store:
        store.add("cats", "secretoutput")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        with pytest.raises(StoreError, match="still on disk, as another process reads") as told:
            store.clear()
        assert str(path) in str(told.value) and "\n" not in str(told.value)
        assert len(store) == 0
        other.close()
        assert store.clear() == 0
        kept = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert b"secret" not in kept


def test_a_closed_store_is_refused(path: Path) -> None:
    store = ReferenceStore(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="open it again"):
        store.add("cats", "purr")


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be deleted")
@pytest.mark.parametrize("names", [("",), ("", "-wal", "-shm")])
def test_a_file_that_was_deleted_is_begun_anew(path: Path, names: Sequence[str]) -> None:
    with ReferenceStore(path) as store:
        store.add("cats", "purr")
        for name in names:
            path.with_name(path.name + name).unlink()
        assert store.search("cats") == []
        store.add("dogs", "bark")
        assert [entry.output for entry in ReferenceStore(path).search("dogs")] == ["bark"]
        assert len(store) == 1


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be deleted")
def test_a_file_that_another_process_has_begun_anew_is_shared_with_it(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("cats", "purr")
        for file in list(path.parent.iterdir()):
            file.unlink()
        with ReferenceStore(path) as other:
            other.add("dogs", "bark")
            store.add("birds", "sing")
            assert len(store) == len(other) == 2
        assert [entry.output for entry in store.search("dogs")] == ["bark"]


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be deleted")
def test_a_file_that_cannot_be_begun_anew_is_tried_again(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("cats", "purr")
        for file in list(path.parent.iterdir()):
            file.unlink()
        path.mkdir()
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be opened"):
                store.add("dogs", "bark")
        path.rmdir()
        store.add("dogs", "bark")
        assert len(store) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_store_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceStore(path) as store:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StoreError, match="parent process"):
            store.search("cats")
        monkeypatch.undo()
        assert store.search("cats") == []


def other_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.commit()
    connection.close()


def newer_format(path: Path) -> None:
    ReferenceStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"not a database, " * 100), "not an SQLite database"),
        (other_database, "not a reference store"),
        (newer_format, "format 99, newer than"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_other_files_are_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "references.db"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=message) as caught:
        ReferenceStore(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_damaged_schema_is_explained(path: Path) -> None:
    ReferenceStore(path).close()
    content = path.read_bytes()
    assert content.count(b"TRIGGER entry_deleted") == 1
    path.write_bytes(content.replace(b"TRIGGER entry_deleted", b"TRIGGER\xc3\xffntry_deleted"))
    with pytest.raises(StoreError, match="it is damaged"):
        ReferenceStore(path)


def test_damage_found_later_is_explained(path: Path) -> None:
    with ReferenceStore(path) as store:
        for number in range(200):
            store.add(f"q{number} cats", "output " * 100)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        ReferenceStore(path).search("cats")


def test_sqlite_without_fts5(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if "fts5" in statement:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(statement, *parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, **kw, factory=Bare))
    with pytest.raises(StoreError, match="FTS5"):
        ReferenceStore(path)
