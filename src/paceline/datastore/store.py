"""A datastore: texts as a tokenizer's ids, in a folder that any number of processes may share.

- `index` holds most texts, sorted (`index_file.py`); one rename puts a new one in its place, and
  processes that have mapped the old one keep it.
- `log` holds what was added since (`log_file.py`); after a merge that was killed, `.log.NAME` does.
- `.lock` is held while either changes, `.merging` while a new index is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from paceline.datastore.documents import RecentTexts, bounded, checked, joined
from paceline.datastore.index_file import INDEX, INDEX_MAGIC, Header, Index, read_index, write_draft
from paceline.datastore.log_file import LOG_MAGIC, Log, logs_to_come
from paceline.datastore.private_files import begins, check_folder, draft_of, put_in_place, stamp_of
from paceline.datastore.sorting import BORDER, Int32, sort_places
from paceline.datastore.suffix_array import SuffixArray
from paceline.errors import MergeError, StoreError, UsageError
from paceline.file_locks import held
from paceline.models.cache import LOCK, cache_root, explain_os_errors

MOST_TOKENS = 20_000_000
"""Default limit of an index: 160 MB."""

_MOST_LOGGED = 1 << 18
_KEPT = "datastores"  # in the cache folder
_LOG, _MERGING = "log", ".merging"
_PATIENCE = 30.0  # seconds to wait for another process, which may have been stopped


@dataclass(frozen=True)
class DatastoreInfo:
    """What a datastore holds. logged: tokens that are not in the index yet; bytes: on disk."""

    documents: int
    tokens: int
    logged: int
    bytes: int


class Datastore:
    """The texts in a folder, as ids of one tokenizer.

    vocabulary: the tokenizer's mark, see `paceline.models.vocabulary.vocabulary_mark`; ids of
    another tokenizer are refused. "" reads those of any.
    version: changes whenever there is something new to look up.

    All methods raise StoreError if a file is damaged, of another tokenizer, locked for long, or
    cannot be read or written. A missing or empty folder is an empty datastore; one with other files
    is refused.
    """

    def __init__(self, folder: Path, vocabulary: str) -> None:
        self.folder, self._vocabulary = folder, vocabulary
        self._place = folder / INDEX
        self.version = 0
        self._lock = Lock()
        self._merge_at = _MOST_LOGGED
        self._waits = True
        self._merger: Thread | None = None
        self._trouble: MergeError | None = None
        with _explained(folder, "read"):
            check_folder(folder, (INDEX, _LOG, LOCK, _MERGING))
            self._open()

    @classmethod
    def default_folder(cls, vocabulary: str) -> Path:
        """Return the default folder of a tokenizer's datastore."""
        return cache_root() / _KEPT / vocabulary

    @classmethod
    def any_by_default(cls) -> bool:
        """Whether any tokenizer may have a datastore in its default folder."""
        return (cache_root() / _KEPT).is_dir()

    @property
    def largest(self) -> int:
        """The largest id, -1 if there is none."""
        return max(self._index.header.largest, *map(_largest, self._log.documents), -1)

    def info(self) -> DatastoreInfo:
        """Count what the datastore holds."""
        header, logged = self._index.header, self._log.tokens
        documents = header.documents + len(self._log.documents)
        tokens = header.tokens - max(0, header.documents - 1) + logged  # without borders
        size = sum(_size(self.folder / name) for name in (INDEX, _LOG))
        return DatastoreInfo(documents, tokens, logged, size)

    def arrays(self) -> list[SuffixArray]:
        """Return arrays to look texts up in, newest texts first. Each call makes new ones on the
        same files, without what is added later; see `version`."""
        with self._lock:
            pieces = self._recent.pieces(self._log.documents)
            found = [*pieces, (self._index.tokens, self._index.order)]
        return [SuffixArray(tokens, order) for tokens, order in found if len(order)]

    def add(self, documents: Iterable[Sequence[int] | Int32]) -> None:
        """Add documents to the log; other processes see them when they open or change the datastore.
        At 262,144 logged tokens, a thread moves all of them to the index, as `build` does with its
        latest limit; a process that ends waits for it.

        Raises UsageError for invalid ids, and an error of the thread once, as MergeError: the next
        call still adds its documents."""
        new = [checked(document) for document in documents]
        trouble = self._trouble  # not that of a thread started below
        with self._changing():
            if stamp_of(self._place) != self._stamp:
                self._open()  # another process has built a new index
            with self._lock:
                kept = False
                try:
                    kept = self._log.append([one for one in new if len(one)])
                finally:
                    if not kept:
                        self._recent = RecentTexts()
                    self.version += 1
            merging = self._merger is not None and self._merger.is_alive()
            if self._log.tokens >= self._merge_at and not merging:
                self._merger = Thread(target=self._merge_log, name="paceline-merge")
                self._merger.start()
        if trouble is not None:
            if self._trouble is trouble:
                self._trouble = None
            raise trouble

    def build(
        self, documents: Iterable[Sequence[int] | Int32] = (), most: int | None = None
    ) -> None:
        """Merge the log and more documents into the index, each once, in about a second per million
        tokens. most: tokens, borders included, beyond which the oldest documents are dropped; None:
        the limit of before, at first `MOST_TOKENS`.

        Raises UsageError for invalid ids, and for a limit below 1."""
        if most is not None and most < 1:
            raise UsageError(f"most is {most}: give a number of tokens above 0")
        self._merge([checked(document) for document in documents], most)

    def _merge_log(self) -> None:
        try:
            self._merge([], None, least=_MOST_LOGGED)
            self._merge_at = _MOST_LOGGED
        except StoreError as error:
            self._trouble = MergeError(f"{error}; its log holds all documents")
            self._merge_at = self._log.tokens + _MOST_LOGGED

    def _merge(self, new: list[Int32], most: int | None, least: int = 0) -> None:
        """Write a new index; only the last step blocks other processes from adding to the log. least:
        tokens of a log that is worth it; with fewer another process was faster."""
        patience = _PATIENCE if least else -1  # who asks for an index may stop waiting
        lock = held(self.folder / _MERGING, patience=patience)
        with _explained(self.folder, "change"), lock, self._drafting():
            before = self._read_index()
            log = Log(self.folder / _LOG, self._vocabulary, before.name)
            if log.tokens < least:
                return
            most = before.header.most if most is None else most
            every = [*_documents(before.tokens), *log.documents, *new]
            kept = bounded(every, MOST_TOKENS if most is None else most)
            tokens = joined(kept)
            order = sort_places(tokens)
            sizes = len(tokens), len(order), len(kept), _largest(tokens)
            header = Header(self._vocabulary, *sizes, most)
            draft, name = write_draft(self._place, header, tokens, order)
            with self._changing():
                now = Log(self.folder / _LOG, self._vocabulary, before.name)
                now.keep(len(log.documents), name)  # those added meanwhile stay in it
                put_in_place(draft, self._place)  # not mapped, which Windows would refuse
                now.drop(name)
                self._open()  # as others have it: not what was built in memory

    @contextmanager
    def _drafting(self) -> Iterator[None]:
        """Leave no draft that was not put in place: a full disk would stay full. Raises StoreError if
        there is not enough memory."""
        try:
            yield
        except MemoryError as error:
            raise StoreError(
                f"there is not enough memory to sort the texts of {self.folder}: build it again "
                "with a smaller --limit"
            ) from error
        finally:
            for path in (self._place, self.folder / _LOG):
                with suppress(OSError):
                    draft_of(path).unlink(missing_ok=True)

    def _open(self) -> None:
        """Switch to the present index and log; other threads may look texts up meanwhile."""
        while True:
            stamp, index = stamp_of(self._place), self._read_index()
            log = Log(self.folder / _LOG, index.header.vocabulary, index.name)
            with self._lock:
                self._stamp, self._index = stamp, index
                self._log, self._recent = log, RecentTexts()
                self.version += 1
            # A merge that ends meanwhile has moved documents of the log to another index.
            if stamp_of(self._place) == stamp:
                return

    def _read_index(self) -> Index:
        try:
            found = read_index(self._place)
        except (FileNotFoundError, NotADirectoryError):  # perhaps cleared just now
            nothing = np.zeros(0, dtype=np.int32)
            return Index(Header(self._vocabulary, 0, 0, 0, -1), nothing, nothing, "")
        if self._vocabulary not in ("", found.header.vocabulary):
            raise StoreError(
                f"the datastore {self.folder} holds the tokens of a model with another tokenizer: "
                "build one for this model in another folder"
            )
        return found

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with _explained(self.folder, "change"), ExitStack() as lock:
            patience = _PATIENCE if self._waits else 0.0
            try:
                lock.enter_context(held(self.folder / LOCK, patience=patience))
            except TimeoutError:
                self._waits = False  # while one text waits in vain, a server's others do, too
                raise
            self._waits = True
            yield


def clear_datastore(folder: Path) -> int:
    """Delete a datastore's files, damaged or not, and return the bytes freed.

    Raises StoreError if they cannot be deleted, or none of them is a datastore's."""
    freed = 0
    with _explained(folder, "change"):
        files = _files(folder)
        ours = any(begins(path, magic) for path, magic in files.items())
        # Locks show that there was a datastore. Other programs use their names as well, so they say
        # nothing about files that hold something.
        locked = any((folder / name).exists() for name in (LOCK, _MERGING))
        if not ours and (any(map(_size, files)) or not locked):
            raise StoreError(f"{folder} holds no datastore: name another folder")
        with held(folder / _MERGING), held(folder / LOCK):
            for path in _files(folder):
                freed += _size(path)
                path.unlink(missing_ok=True)
    return freed


def _files(folder: Path) -> dict[Path, bytes]:
    """A datastore's files, each with what it begins with; drafts are of a process that was
    killed."""
    index, log = folder / INDEX, folder / _LOG
    logs = (log, draft_of(log), *logs_to_come(log))
    return {index: INDEX_MAGIC, draft_of(index): INDEX_MAGIC} | dict.fromkeys(logs, LOG_MAGIC)


@contextmanager
def _explained(folder: Path, what: str) -> Iterator[None]:
    with explain_os_errors(folder, f"{what} the datastore", "name another folder", StoreError):
        try:
            yield
        except TimeoutError as error:
            raise StoreError(
                f"another process has locked the datastore {folder} for more than {_PATIENCE:g} "
                "seconds: end it, or try again later"
            ) from error


def _size(path: Path) -> int:
    stamp = stamp_of(path)
    return 0 if stamp is None else stamp[2]


def _largest(tokens: Int32) -> int:
    return int(tokens.max(initial=-1))


def _documents(tokens: Int32) -> list[Int32]:
    """Split joined documents; inverts `joined`."""
    if not len(tokens):
        return []
    borders = np.flatnonzero(tokens == BORDER)
    begins, ends = [0, *(borders + 1)], [*borders, len(tokens)]
    return [tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
