"""The store of earlier queries and their outputs, for LLMA's cache-assisted scenario (Yang et al.
2023, arXiv 2304.04487, section 2.3): outputs of similar queries are what a new one is copied from.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import UsageError
from paceline.references import retrieval
from paceline.references.database import Database
from paceline.references.retrieval import SentenceEncoder

_Ranked = list[tuple[int, float]]
"""Entries, each with its score."""

_DAY = 86400.0
# More would stall a search for minutes when an encoder first meets a full store.
_EMBED_AT_ONCE = 256
# Entries examined for every one wanted: some are too unlike the query.
_CANDIDATES = 16
_MOST_CANDIDATES = 1 << 31  # SQLite takes no larger numbers than 2^63


@dataclass(frozen=True)
class Entry:
    """An earlier query with its output.

    score: similarity of its query to the one searched for: the cosine if there is a sentence
    encoder, else bm25, whose scale depends on the store; higher is nearer.
    added: when the pair was last added, in seconds since 1970.
    """

    query: str
    output: str
    score: float
    added: float


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds: text_bytes in UTF-8, file_bytes on disk; oldest and newest are times as
    in `Entry.added`, None if the store is empty."""

    path: Path
    entries: int
    text_bytes: int
    file_bytes: int
    oldest: float | None
    newest: float | None


class ReferenceStore:
    """Keeps pairs of query and output in an SQLite file, and finds those with a similar query.

        with ReferenceStore("references.db") as store:
            store.add("How do I boil an egg?", "Put it into boiling water for …")
            store.search("how to boil eggs")[0].output  ->  "Put it into boiling water for …"

    max_entries, max_bytes: most pairs, and most text in UTF-8; beyond them `add` deletes the pairs
    least recently added or found.
    max_age_days: pairs last added longer ago are not found, and the next `add` deletes them.
    encoder: compares queries by meaning instead of words.
    floor: pairs whose query is less similar to the one searched for are not found; from 0 to 1.
    Without an encoder, similarity is the share of the searched query's words that the other one
    has, where rare words count more and a shared "the" counts almost nothing; with one it is the
    cosine.
    clock: seconds since 1970; it may be set back.

    Threads may share a store, and processes its file; after a fork reopen it.

    Raises StoreError, here and in every method, if the file cannot be opened or used.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 256 * 2**20,
        max_age_days: float | None = None,
        encoder: SentenceEncoder | None = None,
        floor: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        limits = {"max_entries": max_entries, "max_bytes": max_bytes, "max_age_days": max_age_days}
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}: give a number above 0")
        if not 0 <= floor <= 1:
            raise UsageError(f"floor is {floor}: give a number from 0 to 1")
        self.path = Path(os.path.expanduser(path))
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._max_seconds = float("inf") if max_age_days is None else max_age_days * _DAY
        self._encoder = encoder
        self._floor = floor
        self._clock = clock
        self._database = Database(self.path)

    def __len__(self) -> int:
        """The number of pairs."""
        return self.info().entries

    def __enter__(self) -> ReferenceStore:
        """The store itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Close the file; any use afterwards raises StoreError, except closing again."""
        self._database.close()

    def add(self, query: str, output: str) -> None:
        """Keep a pair, or renew the time of a kept one; then enforce the limits.

        A pair larger than `max_bytes` is not kept.
        """
        query, output = _storable(query), _storable(output)
        size = len(query.encode()) + len(output.encode())
        if size > self._max_bytes:
            return
        digest = hashlib.sha256(f"{len(query)} {query}{output}".encode()).digest()
        with self._database.transaction() as connection:
            # Only now, after the wait for other processes: what they added is not in the future.
            now = self._clock()
            used = _time_of_use(connection, now)
            renewed = connection.execute(
                "UPDATE entries SET added = ?, used = ? WHERE digest = ?", (now, used, digest)
            ).rowcount
            if not renewed:
                added = connection.execute(
                    "INSERT INTO entries (digest, bytes, added, used, query, output)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (digest, size, now, used, query, output),
                )
                connection.execute(
                    "INSERT INTO query_terms (rowid, terms) VALUES (?, ?)",
                    (added.lastrowid, " ".join(retrieval.split_terms(query))),
                )
            self._enforce_limits(connection, now)

    def search(self, query: str, limit: int = 4) -> list[Entry]:
        """The pairs with the most similar queries, best first; [] for a query without words, or if
        none is similar enough, see `floor`.

        With an encoder, queries that it has not seen yet are embedded first, the latest 256 at
        most: a large store that is new to it becomes searchable over several searches.
        """
        query = _storable(query)
        terms = retrieval.query_terms(query)
        if not terms or limit < 1:
            return []
        since = self._clock() - self._max_seconds
        if self._encoder is None:
            return self._fetch(self._rank_by_words(terms, since, limit))
        return self._fetch(self._rank_by_meaning(self._encoder, query, since, limit))

    def clear(self) -> int:
        """Delete everything, also from disk, and return how many pairs there were.

        Raises StoreError if another process reads the file for so long that the text stays on disk;
        the pairs are no longer found all the same.
        """
        with self._database.connected() as connection:
            count = connection.execute("DELETE FROM entries").rowcount
            # The words of deleted queries would stay in the index until it is rebuilt.
            connection.execute("INSERT INTO query_terms (query_terms) VALUES ('rebuild')")
        self._database.shrink()
        return count

    def info(self) -> StoreInfo:
        """Sizes and ages."""
        with self._database.connected() as connection:
            count, text_bytes, oldest, newest = connection.execute(
                "SELECT count(*), coalesce(sum(bytes), 0), min(added), max(added) FROM entries"
            ).fetchone()
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        file_bytes = sum(file.stat().st_size for file in files if file.exists())
        return StoreInfo(self.path, count, text_bytes, file_bytes, oldest, newest)

    def _enforce_limits(self, connection: sqlite3.Connection, now: float) -> None:
        # Added before the clock was set back; such a pair would outlive all others.
        connection.execute("UPDATE entries SET added = ? WHERE added > ?", (now, now))
        connection.execute("DELETE FROM entries WHERE added < ?", (now - self._max_seconds,))
        count, size = connection.execute(
            "SELECT count(*), coalesce(sum(bytes), 0) FROM entries"
        ).fetchone()
        doomed: list[tuple[int]] = []
        by_use = connection.execute("SELECT id, bytes FROM entries ORDER BY used, id")
        while count > self._max_entries or size > self._max_bytes:
            entry, entry_size = by_use.fetchone()
            doomed.append((entry,))
            count, size = count - 1, size - entry_size
        by_use.close()
        connection.executemany("DELETE FROM entries WHERE id = ?", doomed)

    def _rank_by_words(self, terms: Sequence[str], since: float, limit: int) -> _Ranked:
        match = retrieval.match_expression(terms)
        with self._database.connected() as connection:
            ranked = connection.execute(
                "SELECT id, -rank FROM query_terms JOIN entries ON id = query_terms.rowid"
                " WHERE query_terms MATCH ? AND added >= ? ORDER BY rank, used DESC, id DESC LIMIT ?",
                (match, since, min(_CANDIDATES * limit, _MOST_CANDIDATES)),
            ).fetchall()
            shares = retrieval.shared_weights(connection, terms, [entry for entry, _ in ranked])
        return [(entry, score) for entry, score in ranked if shares[entry] >= self._floor][:limit]

    def _rank_by_meaning(
        self, encoder: SentenceEncoder, query: str, since: float, limit: int
    ) -> _Ranked:
        vector = np.asarray(encoder.encode([query])[0], dtype="<f4")
        self._embed_missing(encoder, vector.nbytes)
        with self._database.connected() as connection:
            rows = connection.execute(
                "SELECT id, vector FROM embeddings JOIN entries ON id = entry WHERE encoder = ?"
                " AND length(vector) = ? AND added >= ? ORDER BY used DESC, id DESC",
                (encoder.name, vector.nbytes, since),
            ).fetchall()
        # All are unit vectors. Ties keep their order.
        others = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4")
        cosines = others.reshape(-1, len(vector)) @ vector
        order = np.argsort(-cosines, kind="stable")[:limit].tolist()
        return [(rows[at][0], float(cosines[at])) for at in order if cosines[at] >= self._floor]

    def _embed_missing(self, encoder: SentenceEncoder, vector_bytes: int) -> None:
        # A vector of another length is from another model with the same name.
        with self._database.connected() as connection:
            missing = connection.execute(
                "SELECT id, query FROM entries WHERE NOT EXISTS (SELECT 1 FROM embeddings"
                " WHERE entry = id AND encoder = ? AND length(vector) = ?)"
                " ORDER BY used DESC, id DESC LIMIT ?",
                (encoder.name, vector_bytes, _EMBED_AT_ONCE),
            ).fetchall()
        if not missing:
            return
        # Outside any lock, as this is slow.
        vectors = np.asarray(encoder.encode([query for _, query in missing]), dtype="<f4")
        with self._database.transaction() as connection:
            for (entry, _), vector in zip(missing, vectors, strict=True):
                connection.execute(
                    "INSERT OR REPLACE INTO embeddings SELECT id, ?, ? FROM entries WHERE id = ?",
                    (encoder.name, vector.tobytes(), entry),
                )

    def _fetch(self, ranked: _Ranked) -> list[Entry]:
        """The ranked entries, marked as used."""
        found: list[Entry] = []
        if not ranked:
            return found
        now = self._clock()
        with self._database.transaction() as connection:
            used = _time_of_use(connection, now)
            for entry, score in ranked:
                connection.execute("UPDATE entries SET used = ? WHERE id = ?", (used, entry))
                rows = connection.execute(
                    "SELECT query, output, added FROM entries WHERE id = ?", (entry,)
                )
                # No row if another process has just deleted it.
                found += [Entry(query, output, score, added) for query, output, added in rows]
        return found


def _time_of_use(connection: sqlite3.Connection, now: float) -> float:
    """A time for what is used now, after all uses before, even if the clock was set back since."""
    (latest,) = connection.execute("SELECT max(used) FROM entries").fetchone()
    return now if latest is None else max(now, math.nextafter(latest, math.inf))


def _storable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 and so SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
