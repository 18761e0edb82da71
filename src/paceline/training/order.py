"""The order in which prompts are asked: all files at once, each in proportion to its size."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.models.cache import hash_file
from paceline.prompts import PromptRecord, read_prompts


@dataclass(frozen=True)
class PromptFile:
    """A file of prompts; records without a licence or source take the file's."""

    path: Path
    sha256: str
    licence: str
    records: tuple[PromptRecord, ...]

    def as_json(self) -> dict[str, Any]:
        """Its entry in a manifest, without its folder, so that it may be moved."""
        return {
            "name": self.path.name,
            "sha256": self.sha256,
            "records": len(self.records),
            "licence": self.licence,
        }


def read_prompt_files(paths: Sequence[Path], licences: Sequence[str] = ()) -> list[PromptFile]:
    """Read files of prompts.

    licences: none, one for all files, or one for each.

    Raises UsageError for another number of licences, no files, or a file that is named twice,
    cannot be read, can be read only once or is malformed.
    """
    if not paths:
        raise UsageError("no prompts were given: name at least one file of prompts")
    if len(licences) not in (0, 1, len(paths)):
        raise UsageError(
            f"{len(licences)} licences were given, but the files of prompts number {len(paths)}: "
            "give one for all, or one for each in the same order"
        )
    each = list(licences) if len(licences) == len(paths) else [*licences, ""][:1] * len(paths)
    files = []
    for path, licence in zip(paths, each):
        # os.path, because Path's tests raise for names that no file can have.
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            # Its hash would be that of nothing, or take forever.
            raise UsageError(f"{path} is read several times: name a file, not a pipe")
        records = tuple(
            replace(record, licence=record.licence or licence, source=record.source or path.name)
            for record in read_prompts(path)
        )
        files.append(PromptFile(path, hash_file(path), licence, records))
    twice = [file for file in files if [other.sha256 for other in files].count(file.sha256) > 1]
    if twice:
        raise UsageError(f"{twice[0].path} was given twice: name every file of prompts once")
    return files


def interleave(files: Sequence[PromptFile], seed: int) -> list[PromptRecord]:
    """Merge all records. Every prefix of the list holds about the same share of each file, in an
    order of its own that depends only on `seed`."""
    placed = []
    for number, file in enumerate(files):
        # By a hash, not a random number generator: the order must be the same in all versions.
        order = sorted(
            range(len(file.records)),
            key=lambda place: hashlib.blake2b(f"{seed} {place}".encode(), digest_size=16).digest(),
        )
        for rank, place in enumerate(order):
            share = (rank + 0.5) / len(order)
            placed.append((share, number, file.records[place]))
    return [record for _, _, record in sorted(placed, key=lambda entry: entry[:2])]
