"""The manifest of training data: what it was made of, by what, and its shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import json_bytes, parse_json
from paceline.training.shard import write_file

__all__ = ["MANIFEST", "Manifest", "Shard", "load_manifest"]

MANIFEST = "manifest.json"

_FORMAT = 1
_KIND = "training data"


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
        record = {
            "format": _FORMAT,
            "kind": _KIND,
            "complete": self.complete,
            "wanted": self.wanted,
            "tokens": self.tokens,
            "answers": self.answers,
            "skipped": self.skipped,
            "licences": self.licences,
            "run": self.run,
            "about": self.about,
            "shards": [asdict(shard) for shard in self.shards],
        }
        write_file(folder / MANIFEST, json_bytes(record))


def load_manifest(folder: Path) -> Manifest | None:
    """Load the manifest of a folder, None if there is none.

    Raises UsageError if it cannot be read or is damaged.
    """
    path = folder / MANIFEST
    try:
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
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is damaged ({error!r}): delete it and repeat the command to make the data again"
        ) from error
