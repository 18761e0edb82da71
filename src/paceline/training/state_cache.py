"""The target's hidden states on texts, in memory-mapped files that any number of trainings share.

A pass of the target costs several times what a small drafter needs to learn from it, so each text
is read only once. `cache.json` says whose states a folder holds, and lists every shard:

shard-00000.states    [tokens, taps + 1, hidden] in half precision, the last state last
shard-00000.greedy    [tokens] int32: the target's likeliest token after each

A folder with more taps than a training needs serves it too, so train what needs the most first.
A shard is there whole or not at all; a damaged one is removed, and its texts are read again.
A text's states depend only on the text, so the cache changes no bit of a training.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from shutil import disk_usage
from typing import Any, Protocol

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.json_files import parse_json
from paceline.models.cache import hash_file
from paceline.training.dataset import Text, in_turns
from paceline.training.folder import check_same_run, held, write_file

_INDEX = "cache.json"
_KINDS = ("states", "greedy")
_ENTRY = {"name", "tokens", "bytes", "texts", *_KINDS}  # of a shard in the index
_SHARD_TOKENS = 1 << 15
_GIGABYTE = 1e9
_THREADS = 4  # that check shards
_MOST_OPEN = 200  # shards mapped at a time, as each takes two open files
_WRITING = 2  # most shards that are being written while the model reads the next


@dataclass(frozen=True)
class StateShape:
    """Whose states are kept, and which.

    base: fingerprint of the target. taps: layers whose outputs precede the last state.
    dtype: float16, or bfloat16 if states are too large for that. read_in: the arithmetic that made
    them, see `paceline.targets.prepare.arithmetic_of`.
    """

    base: str
    hidden: int
    taps: tuple[int, ...] = ()
    dtype: str = "float16"
    read_in: str = "float32"

    @property
    def token_bytes(self) -> int:
        """Bytes per token."""
        return (len(self.taps) + 1) * self.hidden * 2 + 4

    def as_json(self) -> dict[str, Any]:
        """For the index."""
        return {**asdict(self), "taps": list(self.taps)}


class StateReader(Protocol):
    """Reads texts with the target."""

    def read(self, texts: Sequence[Text]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each text, from `begin` on: states [tokens, taps + 1, hidden] in half precision, and
        the likeliest next tokens int32 [tokens]."""
        ...


@dataclass(frozen=True)
class KeptStates:
    """States of one text from its token `begin` on, as numpy arrays of half-precision bits."""

    states: np.ndarray[Any, np.dtype[np.int16]]
    greedy: np.ndarray[Any, np.dtype[np.int32]]


class StateCache:
    """The states of some texts in a folder; raises UsageError if it cannot be used.

    most_bytes: limit for all shards together; 0 for what the disk has.
    """

    def __init__(self, folder: Path, shape: StateShape, most_bytes: int = 0) -> None:
        self.folder = folder
        self.shape = shape
        self._most_bytes = most_bytes
        self._shards: dict[str, dict[str, Any]] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        self._checked: dict[str, list[str]] = {}  # names of shards -> hashes
        self._kept = shape  # what the folder holds, at least `shape`
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot use the cache {folder}: {error.strerror}") from error

    def fill(
        self,
        texts: Iterable[Text],
        reader: Callable[[StateShape], StateReader],
        on_tokens: Callable[[int, int], None] = lambda done, total: None,
    ) -> int:
        """Read the texts that are not cached yet; returns the number of tokens read.

        reader: opened, for the folder's shape, if texts are missing. on_tokens: called with the
        tokens read, and all. If the process is killed, whole shards stay.

        Raises UsageError for another model's states, or if texts are missing and there is no room,
        or another process is filling the folder.
        """
        wanted = {text.digest: text for text in texts}
        self._open_index()
        if wanted.keys() <= self._places.keys():
            return 0
        with held(self.folder):
            self._open_index(mend=True)
            missing = [wanted[name] for name in wanted if name not in self._places]
            total = sum(len(text.tokens) - text.begin for text in missing)
            if missing:  # another process may have read them meanwhile
                self._check_room(total, len(missing))
                self._read(missing, reader(self._kept), lambda done: on_tokens(done, total))
        return total

    def _read(
        self, missing: Sequence[Text], reader: StateReader, on_tokens: Callable[[int], None]
    ) -> None:
        done, writing = 0, deque[Future[dict[str, Any]]]()
        names = (name for number in count() if (name := f"shard-{number:05d}") not in self._shards)
        with ThreadPoolExecutor(_WRITING) as threads:
            try:
                for group in in_turns(missing, _fills_a_shard):
                    found = reader.read(group)
                    writing.append(threads.submit(self._write, next(names), group, found))
                    while writing and (len(writing) > _WRITING or writing[0].done()):
                        self._list(writing.popleft())
                    done += sum(len(greedy) for _, greedy in found)
                    on_tokens(done)
                while writing:
                    self._list(writing.popleft())
            finally:  # what is whole stays, whatever has failed
                for written in writing:
                    if written.exception() is None:
                        self._list(written)

    def _list(self, written: Future[dict[str, Any]]) -> None:
        self._add(written.result())
        self._save()

    def get(self, text: Text) -> KeptStates:
        """The states of a text that was passed to `fill`."""
        shard, first, tokens = self._places[text.digest]
        whole = self._opened(shard)
        states = whole.states[first : first + tokens]
        if self._kept != self.shape:
            states = states[:, [self._kept.taps.index(tap) for tap in self.shape.taps] + [-1]]
        return KeptStates(states, whole.greedy[first : first + tokens])

    def _mapped(self, name: str) -> KeptStates:
        tokens = self._shards[name]["tokens"]
        shape = tokens, len(self._kept.taps) + 1, self._kept.hidden
        states = np.memmap(self.folder / f"{name}.states", np.int16, mode="r", shape=shape)
        greedy = np.memmap(self.folder / f"{name}.greedy", np.int32, mode="r", shape=(tokens,))
        return KeptStates(states, greedy)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard["bytes"] for shard in self._shards.values())

    def _open_index(self, mend: bool = False) -> None:
        """mend: remove what is damaged, which only one process may do at a time."""
        path = self.folder / _INDEX
        self._kept, self._shards, self._places = self.shape, {}, {}
        # Of threads as well: batches may be made in one, and validated in another.
        self._opened = lru_cache(_MOST_OPEN)(self._mapped)
        if not path.exists():
            if mend:
                self._save()
            return
        try:
            record = parse_json(path.read_text(encoding="utf-8"))
            if record.pop("sha256", None) not in (None, _hash(record)):
                raise ValueError("its sha256 does not match")
            found, shards = dict(record["run"]), list(record["shards"])
            if not all(shard.keys() >= _ENTRY for shard in shards):
                raise ValueError("it does not describe its shards")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is damaged: delete the folder, it is only a cache") from error
        taps = found.get("taps")
        if isinstance(taps, list) and set(self.shape.taps) <= set(taps):
            self._kept = replace(self.shape, taps=tuple(taps))
        check_same_run(self.folder, found, self._kept.as_json(), "hidden states")
        with ThreadPoolExecutor(_THREADS) as threads:
            whole = list(threads.map(self._is_whole, shards))
        for shard, is_whole in zip(shards, whole):
            if is_whole:
                self._add(shard)
            elif mend:
                for kind in _KINDS:
                    (self.folder / f"{shard['name']}.{kind}").unlink(missing_ok=True)
        if mend and len(self._shards) != len(shards):
            self._save()

    def _is_whole(self, shard: Mapping[str, Any]) -> bool:
        path, hashes = self.folder / shard["name"], [shard[kind] for kind in _KINDS]
        if self._checked.get(path.name) == hashes:
            return True
        try:
            self._checked[path.name] = [hash_file(path.with_suffix(f".{k}")) for k in _KINDS]
        except OSError:
            return False
        return self._checked[path.name] == hashes

    def _add(self, shard: dict[str, Any]) -> None:
        self._shards[shard["name"]], first = shard, 0
        for digest, tokens in shard["texts"]:
            self._places[digest] = shard["name"], first, tokens
            first += tokens

    def _write(
        self, name: str, texts: Sequence[Text], found: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> dict[str, Any]:
        """Write a shard; returns its entry in the index."""
        states = torch.cat([each for each, _ in found]).contiguous()
        greedy = torch.cat([each for _, each in found]).to(torch.int32).contiguous()
        tensors = zip(_KINDS, (states, greedy))
        content = {kind: each.view(-1).view(torch.uint8).numpy().data for kind, each in tensors}
        for kind, numbers in content.items():
            write_file(self.folder / f"{name}.{kind}", numbers)
        return {
            "name": name,
            "tokens": len(greedy),
            "bytes": sum(numbers.nbytes for numbers in content.values()),
            **{kind: hashlib.sha256(numbers).hexdigest() for kind, numbers in content.items()},
            "texts": [[text.digest, len(each)] for text, (each, _) in zip(texts, found)],
        }

    def _save(self) -> None:
        record: dict[str, Any] = {"format": 1, "kind": "hidden states"}
        record |= {"run": self._kept.as_json(), "shards": [*self._shards.values()]}
        content = json.dumps({**record, "sha256": _hash(record)}) + "\n"
        write_file(self.folder / _INDEX, content.encode())

    def _check_room(self, tokens: int, texts: int) -> None:
        needed, free = tokens * self._kept.token_bytes, disk_usage(self.folder).free
        allowed = self._most_bytes - self.bytes if self._most_bytes else free
        if needed > min(allowed, free):
            raise UsageError(
                f"the states of {texts} texts take {needed / _GIGABYTE:.2f} GB, and {self.folder} "
                f"has room for {max(0, min(allowed, free)) / _GIGABYTE:.2f} GB: name a folder on "
                "another disk with --cache, allow more with --cache-size, or take less training data"
            )


def _hash(record: Mapping[str, Any]) -> str:
    """Of an index: a wrong number in it would give a text the states of another."""
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _fills_a_shard(texts: Sequence[Text], following: Text) -> bool:
    return sum(len(text.tokens) - text.begin for text in texts) >= _SHARD_TOKENS
