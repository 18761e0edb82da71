"""The SQLite file behind a reference store: opening, locking, and what can go wrong."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import StoreError

_BUSY_SECONDS = 10.0
_APPLICATION = 0x70616365  # "pace": SQLite's application_id, tells our files from others
_FORMAT = 1  # of the schema, kept as SQLite's user_version
_SCHEMA = (
    # Ids are never reused: a vector may be written after its entry is gone.
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        digest BLOB NOT NULL UNIQUE,
        bytes INTEGER NOT NULL,
        added REAL NOT NULL,
        used REAL NOT NULL,
        query TEXT NOT NULL,
        output TEXT NOT NULL)""",
    "CREATE INDEX entries_by_use ON entries (used, id, bytes, added)",
    "CREATE VIRTUAL TABLE query_terms USING fts5 (terms)",
    """CREATE TABLE embeddings (
        entry INTEGER NOT NULL,
        encoder TEXT NOT NULL,
        vector BLOB NOT NULL,
        PRIMARY KEY (entry, encoder))""",
    """CREATE TRIGGER entry_deleted AFTER DELETE ON entries BEGIN
        DELETE FROM query_terms WHERE rowid = old.id;
        DELETE FROM embeddings WHERE entry = old.id;
    END""",
)
_ADVICE = {
    sqlite3.SQLITE_BUSY: "(another process has locked it): try again when that one has finished",
    sqlite3.SQLITE_CANTOPEN: "(it cannot be opened): check its folder, or name another file",
    sqlite3.SQLITE_CORRUPT: "(it is damaged): delete it to begin a new one",
    sqlite3.SQLITE_FULL: "(the disk is full): free some space",
    sqlite3.SQLITE_NOTADB: "(it is not an SQLite database): name another file, or move it away",
    sqlite3.SQLITE_READONLY: "(it cannot be written): fix its permissions, or name another file",
}


class Database:
    """The file of a reference store, shared by the threads of one process.

    path: created if missing, with its folder, and readable by its owner only.

    Raises StoreError if the file cannot be opened or used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        with self._explained():
            self._opened()

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; another one if the file was deleted or replaced
        meanwhile: nobody would find what is written to one without a name."""
        # SQLite's locks do not survive a fork, and the lock here may be held forever.
        if self._process != os.getpid():
            raise StoreError(
                f"the reference store {self.path} was opened by the parent process: open it again "
                "in this one"
            )
        with self._lock, self._explained():
            if self._closed:
                raise StoreError(f"the reference store {self.path} is closed: open it again")
            if self._connection is not None and _file_at(self.path) != self._file:
                self._disconnect()  # first: it shares files beside the database with the next one
            yield self._connection or self._opened()

    def _opened(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(mode=0o600)
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, self.path)
            self._file = _file_at(self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection in a write transaction, which an exception rolls back."""
        with self.connected() as connection, _transaction(connection):
            yield connection

    def shrink(self) -> None:
        """Take what was deleted off the disk. Raises StoreError if that has to wait for a reader."""
        with self.connected() as connection:
            connection.execute("VACUUM")
            # Only this writes it to the file itself; until then the old text stays there.
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"the deleted text of the reference store {self.path} is still on disk, as another "
                "process reads the file: clear it again when that one has finished"
            )

    def close(self) -> None:
        """Close the file; any use afterwards raises StoreError, except closing again."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._disconnect()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        # sqlite3 cannot decode its own messages if they quote a damaged schema.
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if "no such module: fts5" in str(error):
                raise StoreError(
                    "the reference store needs SQLite's FTS5, which this Python's sqlite3 was "
                    "built without: use a Python that has it"
                ) from error
            # The low byte is the kind of the error, the rest its details.
            kind = getattr(error, "sqlite_errorcode", -1) & 0xFF
            if isinstance(error, UnicodeDecodeError):
                kind = sqlite3.SQLITE_CORRUPT
            advice = _ADVICE.get(kind, f"({error}): fix that, or name another file")
            raise StoreError(f"cannot use the reference store {self.path} {advice}") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _is_new(connection):
        with _transaction(connection):
            if _is_new(connection):  # not filled by another process meanwhile
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
    if _pragma(connection, "application_id") != _APPLICATION:
        raise StoreError(
            f"{path} is an SQLite database, but not a reference store: name another file"
        )
    if (found := _pragma(connection, "user_version")) > _FORMAT:
        raise StoreError(
            f"the reference store {path} has format {found}, newer than the "
            f"{_FORMAT} known here: upgrade paceline, or name another file"
        )
    _write_ahead(connection)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # Immediate: a transaction that reads first and then finds another writer could not wait.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers continue while one process writes (SQLite's WAL)."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # The busy timeout does not cover the change of the journal mode.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous = NORMAL")  # safe with WAL; a crash loses seconds


def _is_new(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return not tables and not _pragma(connection, "application_id")


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file has this name now; None without one."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
