"""Where the trained parts of a drafter come from: this package, a folder, or the model hub."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

from paceline.drafters.trained_parts import CONFIG, FILES, TrainedParts, chain_in
from paceline.errors import ModelError

__all__ = ["check_parts", "find_parts", "shipped", "shipped_chain", "shipped_for"]

PartsT = TypeVar("PartsT", bound=TrainedParts[Any])


def shipped(method: str) -> Path:
    """The folder of this package with a folder of a method's parts per model."""
    return Path(str(files("paceline").joinpath("data", method)))


def check_parts(kind: type[TrainedParts[Any]], parts: str) -> None:
    """Read the parts in a folder, to say early what is wrong with them; "" and hub ids wait.

    Raises ModelError where there is neither such a folder nor could there be such a hub id, or the
    folder holds no parts of this kind that can be decoded with.
    """
    if parts and _folder(kind, parts) is not None:
        _read(kind, parts)


def find_parts(kind: type[PartsT], parts: str, fingerprint: str) -> PartsT:
    """The parts for a model.

    kind: the class of the parts, which says what method they are for.
    parts: a folder, a hub id, or "" for those that come with this package.
    fingerprint: of the model's weights.

    Raises ModelError where there are none, or they are damaged, belong to another model, or cannot
    be decoded with.
    """
    place = parts or shipped_for(kind.method, fingerprint)
    if place is None:
        raise ModelError(
            f"there are no {kind.kind} for this model: train some with 'paceline train "
            f"{kind.method} --model M' or name a folder with {kind.method}:parts=DIR"
        )
    found = _read(kind, place)
    found.check_base(fingerprint)
    return found


def shipped_for(method: str, fingerprint: str) -> str | None:
    """The folder of this package with a method's parts for a model; None where there are none."""
    for config in sorted(shipped(method).glob(f"*/{CONFIG}")):
        base = json.loads(config.read_text(encoding="utf-8"))["base_model"]
        if base["fingerprint"] == fingerprint:
            return str(config.parent)
    return None


def shipped_chain(method: str, fingerprint: str) -> float:
    """Right guesses in a chain, as measured with a method's parts in this package for a model; 0
    where there are none."""
    place = shipped_for(method, fingerprint)
    return chain_in(Path(place)) if place is not None else 0.0


def _folder(kind: type[TrainedParts[Any]], parts: str) -> Path | None:
    """The folder, or None where this is the name of a hub repository."""
    place = Path(parts).expanduser()
    if place.is_dir():
        return place
    owner, slash, name = parts.partition("/")
    if slash and owner not in ("", ".", "..", "~") and name and "/" not in name:
        return None
    raise ModelError(f"there is no folder {parts} with {kind.kind}: check the path")


def _read(kind: type[PartsT], parts: str) -> PartsT:
    folder = _folder(kind, parts) or _downloaded(kind, parts)
    once: Any = _read_once  # a class is hashable, which the type checker doubts
    return cast(PartsT, once(kind, folder, _changed(folder)))


# Every drafter of a batch reads the same files, and trials are timed.
@lru_cache(maxsize=8)
def _read_once(
    kind: type[TrainedParts[Any]], folder: Path, changed: tuple[int, ...]
) -> TrainedParts[Any]:
    found = kind.from_pretrained(folder)
    try:
        found.check_usable()
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    return found


def _changed(folder: Path) -> tuple[int, ...]:
    paths = [folder / name for name in FILES]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _downloaded(kind: type[TrainedParts[Any]], repo: str) -> Path:
    """The folder in the hub's cache, fetched where it is not there yet."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"there is no folder {repo}, and the hub's {kind.kind} of that name cannot be "
            f"fetched: {reason}"
        ) from error
