"""Where the trained parts of a drafter come from: this package, a folder, or the model hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError

if TYPE_CHECKING:
    from paceline.drafters.prompt_tokens import PromptTokens

__all__ = ["check_parts", "find_parts", "shipped"]

_FILES = ("config.json", "model.safetensors", "acceptance.json", "training.json")


def shipped() -> Path:
    """The folder of this package with a folder of prompt tokens per model."""
    return Path(str(files("paceline").joinpath("data", "ppd")))


def check_parts(parts: str) -> None:
    """Read the parts in a folder, to say early what is wrong with them; "" and hub ids wait.

    Raises ModelError where there is neither such a folder nor could there be such a hub id, or the
    folder holds no prompt tokens that can be decoded with.
    """
    if parts and _folder(parts) is not None:
        _read(parts)


def find_parts(parts: str, fingerprint: str) -> PromptTokens:
    """The prompt tokens for a model.

    parts: a folder, a hub id, or "" for those that come with this package.
    fingerprint: of the model's weights.

    Raises ModelError where there are none, or they are damaged, belong to another model, or cannot
    be decoded with.
    """
    place = parts or _shipped_for(fingerprint)
    if place is None:
        raise ModelError(
            "there are no prompt tokens for this model: train some with 'paceline train ppd "
            "--model M' or name a folder with ppd:parts=DIR"
        )
    found = _read(place)
    found.check_base(fingerprint)
    return found


def _shipped_for(fingerprint: str) -> str | None:
    return next((str(place) for place, base in _bases() if base == fingerprint), None)


def _bases() -> Iterator[tuple[Path, str]]:
    """Folders that come with this package, each with the fingerprint it belongs to."""
    for config in sorted(shipped().glob("*/config.json")):
        yield (
            config.parent,
            json.loads(config.read_text(encoding="utf-8"))["base_model"]["fingerprint"],
        )


def _folder(parts: str) -> Path | None:
    """The folder, or None where this is the name of a hub repository."""
    place = Path(parts).expanduser()
    if place.is_dir():
        return place
    owner, slash, name = parts.partition("/")
    if slash and owner not in ("", ".", "..", "~") and name and "/" not in name:
        return None
    raise ModelError(f"there is no folder {parts} with prompt tokens: check the path")


def _read(parts: str) -> PromptTokens:
    folder = _folder(parts) or _downloaded(parts)
    return _read_once(folder, _changed(folder))


# Every drafter of a batch reads the same files, and trials are timed.
@lru_cache(maxsize=8)
def _read_once(folder: Path, changed: tuple[int, ...]) -> PromptTokens:
    from paceline.drafters.prompt_tokens import PromptTokens  # torch takes a while to import

    found = PromptTokens.from_pretrained(folder)
    if not found.config.is_plain:
        raise ModelError(
            f"the prompt tokens in {folder} use extensions that are there for the study only: "
            "decode with some that were trained without"
        )
    return found


def _changed(folder: Path) -> tuple[int, ...]:
    paths = [folder / name for name in _FILES]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _downloaded(repo: str) -> Path:
    """The folder in the hub's cache, fetched where it is not there yet."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"there is no folder {repo}, and the hub's prompt tokens of that name cannot be "
            f"fetched: {reason}"
        ) from error
