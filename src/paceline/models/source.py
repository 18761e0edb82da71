"""From a model's name, as the user typed it, to its location."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import ModelError, meant
from paceline.models.gguf_header import MAGIC
from paceline.models.progress import ProgressCallback, ignore_progress
from paceline.models.registry import GGUF_NAME, Alias
from paceline.models.store import ModelStore

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<file>[^:]+\.(?i:gguf)))?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is: a local folder or a hub repository, and perhaps one GGUF file in it.

    Exactly one of `folder` and `repo` is set; `alias` is set if the name was an alias.
    described: the folder also holds the GGUF file's description, see `describe_gguf`.
    """

    name: str
    folder: Path | None = None
    repo: str | None = None
    gguf_file: str | None = None
    alias: Alias | None = None
    described: bool = False

    @property
    def location(self) -> str:
        """What transformers' loaders take as the model's name."""
        return str(self.folder) if self.folder is not None else str(self.repo)


def resolve(
    name: str,
    *,
    store: ModelStore | None = None,
    progress: ProgressCallback = ignore_progress,
    local_files_only: bool = False,
) -> ModelSource:
    """Find the model that a name stands for. An alias that is not on this machine is pulled.

    A name is, in this order: an alias; an existing folder or GGUF file; a hub id `owner/name`,
    or `owner/name:file.gguf` for a GGUF file in a hub repository.

    Raises ModelError for a name that is none of these or no language model's, and an alias that
    cannot be pulled or is damaged.
    """
    store = store or ModelStore()
    if name in store.aliases:
        if store.aliases[name].kind != "causal-lm":  # told before it is downloaded
            kind = store.aliases[name].kind.replace("-", " ")
            raise ModelError(f"{name} is a {kind}: name a causal language model instead")
        if not local_files_only and not store.is_pulled(name):
            store.pull(name, progress=progress)
        return replace(_in_folder(name, store.path(name)), alias=store.aliases[name])
    # os.path, because Path's tests raise for names that no file can have.
    place = os.path.expanduser(name)
    if os.path.isdir(place):
        return _in_folder(name, Path(place))
    if os.path.isfile(place) and (place.endswith(".gguf") or _begins_as_gguf(place)):
        return ModelSource(name, folder=Path(place).parent, gguf_file=Path(place).name)
    hub = _HUB_ID.fullmatch(name)
    if hub is not None and not os.path.exists(place) and not hub["repo"].endswith(".gguf"):
        return ModelSource(name, repo=hub["repo"], gguf_file=hub["file"])
    if os.path.isfile(place):
        raise ModelError(f"{name} is neither a GGUF file nor a folder with a model: name one")
    if name.endswith(".gguf") or name.startswith((".", "~", os.sep)):
        raise ModelError(f"unknown model {name!r}: there is no such file or folder")
    known = {alias: each for alias, each in store.aliases.items() if each.kind == "causal-lm"}
    raise ModelError(
        f"unknown model {name!r}{meant(name.lower(), known)}: use one of {', '.join(known)}, "
        "a folder, a .gguf file or a hub id owner/name"
    )


def _begins_as_gguf(place: str) -> bool:
    """Other programs keep such files under other names, such as `sha256-…`."""
    try:
        with open(place, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _in_folder(name: str, folder: Path) -> ModelSource:
    """A folder of safetensors, or one with a GGUF file like those of the aliases instead."""
    described = (folder / GGUF_NAME).is_file() and (folder / "config.json").is_file()
    if described and not any(folder.glob("*.safetensors")):
        return ModelSource(name, folder=folder, gguf_file=GGUF_NAME, described=True)
    return ModelSource(name, folder=folder)
