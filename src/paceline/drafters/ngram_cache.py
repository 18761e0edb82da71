"""A cache of encoded n-grams (Chimera, section 4.1.1).

There are three stores, each optional: a dictionary made beforehand, an LRU cache of fixed size in
memory, and a file for what that evicts.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.datastore.private_files import open_private
from paceline.errors import UsageError

_MOST_ON_DISK = 1 << 16  # states; 150 MB of 576 numbers each, 1 GB of 4096

_TAKE = "SELECT state FROM states WHERE parts = ? AND ngram = ?"
_PUT = "INSERT OR REPLACE INTO states VALUES (?, ?, ?)"
# A row that is replaced gets a new number, so the lowest ones have not been put for longest.
_DROP = "DELETE FROM states WHERE rowid <= (SELECT MAX(rowid) FROM states) - ?"

Ngram = tuple[int, ...]
State = torch.Tensor | NDArray[np.float32]
"""[hidden]; an array if the encoder is a program. From a file it is a tensor on the CPU."""
Encode = Callable[[Sequence[Ngram]], Sequence[State]]


def last_ngram(tokens: Sequence[int], order: int) -> Ngram:
    """The n-gram that ends with the last of these tokens, as in `context_encoder.ngrams`."""
    known = tuple(tokens[-order:])
    return known + known[-1:] * (order - len(known))


def ngrams_of(text: Sequence[int], places: range, order: int) -> list[Ngram]:
    """The n-grams that end at these places of a text."""
    return [last_ngram(text[max(0, place + 1 - order) : place + 1], order) for place in places]


class NgramCache:
    """Looks up n-grams, and encodes the missing ones together.

    encode: n-grams -> their states, each in memory of its own.
    capacity: n-grams kept in memory; 0 remembers nothing.
    beforehand: n-grams -> their states [hidden]; never evicted.
    spill: a file for what memory evicts, created if missing; None discards it. It holds the last
    65,536 states; after an error, which is a warning, it is not used any more.
    parts: identifies the encoder. A file may hold states of any number of encoders; each gets back
    only its own.

    Raises UsageError if the file cannot be used; to check that, it is read to its end once.
    """

    def __init__(
        self,
        encode: Encode,
        capacity: int,
        beforehand: Mapping[Ngram, State] | None = None,
        spill: Path | None = None,
        parts: str = "",
    ) -> None:
        self._encode = encode
        self._capacity = capacity
        self._beforehand = beforehand or {}
        self._memory: OrderedDict[Ngram, State] = OrderedDict()
        self._disk = None if spill is None else _Disk(spill, parts)

    def states(self, ngrams: Sequence[Ngram], keep: bool = True) -> list[State]:
        """The state of each n-gram; all are of one order. keep: whether to keep those encoded."""
        found = {ngram: self._find(ngram) for ngram in dict.fromkeys(ngrams)}
        missing = [ngram for ngram, state in found.items() if state is None]
        if missing:
            for ngram, made in zip(missing, self._encode(missing), strict=True):
                found[ngram] = made
                if keep:
                    self._keep(ngram, made)
        return [state for ngram in ngrams if (state := found[ngram]) is not None]

    def _find(self, ngram: Ngram) -> State | None:
        if ngram in self._beforehand:
            return self._beforehand[ngram]
        if ngram in self._memory:
            self._memory.move_to_end(ngram)
            return self._memory[ngram]
        state = None if self._disk is None else self._disk.take(ngram)
        if state is not None:
            self._keep(ngram, state)
        return state

    def _keep(self, ngram: Ngram, state: State) -> None:
        if self._capacity == 0:
            return
        self._memory[ngram] = state
        if len(self._memory) > self._capacity:
            oldest, left = self._memory.popitem(last=False)
            if self._disk is not None:
                self._disk.put(oldest, left)


class _Disk:
    """N-grams in an SQLite file; several processes and encoders may share it."""

    def __init__(self, path: Path, parts: str) -> None:
        self._path, self._parts = path, parts
        try:
            open_private(path, "ab").close()  # n-grams show what was written
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA synchronous = OFF")  # what is lost is encoded anew
            database.execute(
                "CREATE TABLE IF NOT EXISTS states "
                "(parts TEXT, ngram TEXT, state BLOB, PRIMARY KEY (parts, ngram))"
            )
            database.execute(_TAKE, ("", ""))  # fails if the table is of another kind
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError("it is damaged")
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"cannot store n-gram states in {path}: {error}; name another file"
            ) from error
        self._database: sqlite3.Connection | None = database

    def take(self, ngram: Ngram) -> torch.Tensor | None:
        found = self._run(_TAKE, self._parts, _key(ngram))
        content = found[0][0] if found else b""
        if not content or len(content) % 4:  # damaged: it is encoded again
            return None
        return torch.frombuffer(bytearray(content), dtype=torch.float32)

    def put(self, ngram: Ngram, state: State) -> None:
        content = torch.as_tensor(state).float().cpu().numpy().tobytes()
        self._run(_PUT, self._parts, _key(ngram), content)
        self._run(_DROP, _MOST_ON_DISK)

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement yields; none once the file has failed."""
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._database = None
            warnings.warn(
                f"n-gram states are no longer kept in {self._path} ({error}): name another file",
                RuntimeWarning,
                stacklevel=1,
            )
            return []


def _key(ngram: Ngram) -> str:
    return " ".join(map(str, ngram))
