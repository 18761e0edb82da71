"""Training data in a folder: answers in shards, and a manifest of what they were made of.

A shard has the same bytes whenever it is made.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import json_bytes, parse_json
from paceline.training.folder import read_checked, undamaged, write_file

_MANIFEST = "manifest.json"
_FORMAT, _KIND = 1, "training data"
_SAVED = ("complete", "wanted", "tokens", "answers", "skipped", "licences", "run", "about")


@dataclass(frozen=True)
class Answer:
    """An answer of the target, and its prompt.

    id, task, licence, source: of the prompt; the turns of a conversation are "ID#1", "ID#2", …
    prompt: token ids, chat template included; in a conversation everything said before.
    tokens: the target's own, including the one that ended the text.
    finish_reason: "eos", or "length" if the answer was cut off.
    """

    id: str
    task: str
    licence: str
    source: str
    prompt: list[int]
    tokens: list[int]
    finish_reason: str


def pack(answers: Sequence[Answer]) -> bytes:
    """The content of a shard: JSON lines, gzipped."""
    lines = [
        json.dumps(asdict(answer), ensure_ascii=False, separators=(",", ":")) for answer in answers
    ]
    buffer = io.BytesIO()
    # Without the time and name that gzip records by default.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        # A source is the name of a file, which may be no text, see `json_bytes`.
        file.write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    return buffer.getvalue()


def unpack(path: Path, sha256: str) -> list[Answer]:
    """The answers of a shard; raises UsageError, naming it, if its bytes are not those that were
    written."""
    with undamaged(f"the shard {path}", "repeat its 'paceline train data' to make it again"):
        # Not `splitlines`, which also splits at characters that a JSON text may hold.
        lines = gzip.decompress(read_checked(path, sha256)).decode().split("\n")
        return [Answer(**parse_json(line)) for line in lines[:-1]]


@dataclass(frozen=True)
class Shard:
    """The manifest's entry for a shard.

    prompts: how many of the order it covers, skipped ones included.
    tokens: new ones, of the answers alone.
    skipped: prompts that were too long; earlier turns of such a conversation are kept.
    licences: licence -> answers.
    """

    name: str
    sha256: str
    prompts: int
    answers: int
    tokens: int
    skipped: int
    licences: dict[str, int]


@dataclass
class Manifest:
    """The content of `manifest.json`.

    run: what the bytes of the shards depend on, JSON values; `run["model"]` is a fingerprint.
    about: command, machine and versions, for readers.
    wanted: new tokens asked for. complete: they are there, or the prompts are used up.
    """

    run: dict[str, Any]
    about: dict[str, Any]
    wanted: int
    shards: list[Shard] = field(default_factory=list)
    complete: bool = False

    @property
    def tokens(self) -> int:
        """New tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def answers(self) -> int:
        """Answers in all shards."""
        return sum(shard.answers for shard in self.shards)

    @property
    def skipped(self) -> int:
        """Prompts that were too long."""
        return sum(shard.skipped for shard in self.shards)

    @property
    def licences(self) -> dict[str, int]:
        """Licence of the prompts -> answers."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            total.update(shard.licences)
        return dict(sorted(total.items()))

    def save(self, folder: Path) -> None:
        """Write it atomically; raises UsageError if that fails."""
        record: dict[str, Any] = {"format": _FORMAT, "kind": _KIND}
        record |= {name: getattr(self, name) for name in _SAVED}
        record["shards"] = [asdict(shard) for shard in self.shards]
        write_file(folder / _MANIFEST, json_bytes(record))


def load_manifest(folder: Path) -> Manifest | None:
    """Load the manifest of a folder, None if there is none. Raises UsageError if it cannot be read
    or is damaged."""
    path = folder / _MANIFEST
    with undamaged(str(path), "delete it and repeat the command to make the data again"):
        if not path.exists():
            return None
        record = parse_json(path.read_text(encoding="utf-8"))
        if (record["format"], record["kind"]) != (_FORMAT, _KIND):
            raise ValueError("it has another format or kind")
        return Manifest(
            run=dict(record["run"]),
            about=dict(record["about"]),
            wanted=int(record["wanted"]),
            shards=[Shard(**shard) for shard in record["shards"]],
            complete=bool(record["complete"]),
        )


class TrainingData:
    """The answers in a folder that `paceline train data` has filled, in order.

    fingerprint: of the model the data is for; data of another one is refused. None: any.

    A shard is read, and its sha256 checked, when iteration reaches it.

    Raises UsageError if there is no data, its manifest is damaged, another model made it, or it
    is unfinished; and, while reading, for a damaged shard, naming it.
    """

    def __init__(self, folder: Path, fingerprint: str | None = None) -> None:
        manifest = load_manifest(folder)
        if manifest is None:
            raise UsageError(
                f"{folder} holds no training data: make some with 'paceline train data'"
            )
        made_by = manifest.run.get("model")
        if fingerprint is not None and made_by != fingerprint:
            raise UsageError(
                f"the data in {folder} was made by the model {made_by}, not by {fingerprint}: a "
                "drafter learns from the answers of its own target"
            )
        if not manifest.complete:
            raise UsageError(
                f"the data in {folder} is unfinished, {manifest.tokens} of {manifest.wanted} tokens:"
                " repeat its command to continue"
            )
        self.folder = folder
        self.manifest = manifest

    def __iter__(self) -> Iterator[Answer]:
        for shard in self.manifest.shards:
            yield from unpack(self.folder / shard.name, shard.sha256)
