"""Reading training data: shard by shard, each checked when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.errors import UsageError
from paceline.training.manifest import load_manifest
from paceline.training.shard import Answer, unpack

__all__ = ["TrainingData"]


class TrainingData:
    """The answers in a folder that `paceline train data` has filled.

    fingerprint: of the model the data is for; data of another one is refused. None: any.

    Iterating yields all answers in order; `len` counts them. A shard is read, and its sha256
    checked, when iteration reaches it.

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

    def __len__(self) -> int:
        return self.manifest.answers

    def __iter__(self) -> Iterator[Answer]:
        for shard in self.manifest.shards:
            yield from unpack(self.folder / shard.name, shard.sha256)
