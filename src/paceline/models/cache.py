"""The cache folder: its location, and the sizes and hashes of its files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelError, PacelineError
from paceline.file_locks import held

LOCK = ".lock"
PATIENCE = 10.0
"""Seconds to wait for the lock of a cache: what is not kept is made again next time."""

_SCRATCH = ".new-"
_CHUNK = 1 << 22
_HEAD_BYTES = 1 << 16
_SAMPLES = 1024
_SAMPLE_BYTES = 256
_ELSEWHERE = "set PACELINE_CACHE to another folder"
_OURS = re.compile(r"[0-9a-f]{32,}")  # names of entries


def cache_root() -> Path:
    """The folder, made or not, for all paceline keeps: $PACELINE_CACHE, else the user's cache."""
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))  # `Path.expanduser` fails for an unknown user
    # Imported only here: a machine where nothing can be installed need only name a folder.
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("paceline"))
    except RuntimeError as error:  # this user has no home folder
        raise ModelError(f"there is no cache folder ({error}): {_ELSEWHERE}") from error


@contextmanager
def explain_os_errors(
    root: Path,
    what: str = "write to the cache folder",
    elsewhere: str = _ELSEWHERE,
    kind: type[PacelineError] = ModelError,
) -> Iterator[None]:
    """Raise an error of this kind, one sentence, instead of any OSError from the body, which writes
    below `root`; `elsewhere` suggests a way out."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot {what} {root} ({error.strerror or error}): free some space, "
            f"fix its permissions, or {elsewhere}"
        ) from error


@dataclass(frozen=True)
class FolderCache:
    """Folders in a folder of the cache, each made once, of which the last used ones are kept.

    name: of the cache's folder. holds: a file in each folder. most: folders that are kept. files:
    that the cache has beside them.
    """

    name: str
    holds: str
    most: int
    files: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The cache's own folder, made or not."""
        return cache_root() / self.name

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """An empty folder, moved to its place in one step after the body, unless that raises.

        The cache's lock is held meanwhile: what else is being made was left by a killed process,
        and is deleted. Raises OSError if nothing can be written, or another process holds the lock
        for longer than `PATIENCE`.
        """
        root = self.root
        with held(root / LOCK, patience=PATIENCE):
            for left in root.glob(f"{_SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=_SCRATCH) as scratch:
                new, place = Path(scratch, "new"), root / name
                new.mkdir()
                yield new
                if place.exists():
                    place.replace(Path(scratch, "old"))
                new.replace(place)
                # The new one stays even if the clock was set back.
                others = [each for each in root.iterdir() if each != place and self._is_own(each)]
                for each in sorted(others, key=lambda one: -one.stat().st_mtime)[self.most - 1 :]:
                    shutil.rmtree(each, ignore_errors=True)

    def clear(self) -> int:
        """Delete all folders and files of the cache; returns the bytes freed. Anything else there
        may be the user's. Raises ModelError if that fails."""
        root, freed = self.root, 0
        if not root.is_dir():
            return 0
        with explain_os_errors(root), held(root / LOCK):
            for path in root.iterdir():
                named = path.name.startswith(_SCRATCH) or _OURS.fullmatch(path.name)
                if path.is_dir() and not path.is_symlink() and (named or self._is_own(path)):
                    freed += folder_size(path)
                    shutil.rmtree(path)
                elif path.name in self.files:
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    def _is_own(self, folder: Path) -> bool:
        return (folder / self.holds).is_file()


def was_used(place: Path) -> None:
    """Note that a cache's folder was used now, unless it is another user's."""
    with suppress(OSError):
        os.utime(place)


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file, read in pieces; `on_bytes` is called with the bytes done so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()


def sampled(files: Iterable[Path]) -> str:
    """A sha256 of the files' sizes and of some of their bytes, a few hundred kilobytes of each."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            digest.update(stream.read(_HEAD_BYTES))
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """Bytes in all files below a folder; files that vanish meanwhile count as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def require_space(root: Path, needed: int, what: str, elsewhere: str = _ELSEWHERE) -> None:
    """Raise ModelError if the disk of `root` lacks `needed` bytes; `elsewhere` is a way out."""
    free = shutil.disk_usage(root).free
    if free < needed:
        raise ModelError(
            f"{what} needs {needed / 1e9:.1f} GB of disk space while it is prepared, but {root} "
            f"has only {free / 1e9:.1f} GB free: make room, or {elsewhere}"
        )
