"""Where the trained parts of a drafter come from: this package, a folder, or the model hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from paceline.drafters.settings import Settings
from paceline.drafters.trained_parts import FILES, TRAINING, TrainedParts
from paceline.errors import ModelError
from paceline.json_files import read_json

PartsT = TypeVar("PartsT", bound=TrainedParts[Any])


@dataclass(frozen=True)
class PartsSettings(Settings):
    """Settings of a method with trained parts of this kind.

    parts: a folder made by `paceline train`, a hub id, or "" for those that come with this package.
    A folder is read now, to report errors early.

    Raises UsageError for a setting out of range; ModelError for what is neither a folder nor could
    be a hub id, or if the folder holds no usable parts.
    """

    kind: ClassVar[type[TrainedParts[Any]]]

    parts: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts and _folder(self.kind, self.parts) is not None:
            _read(self.kind, self.parts)


def shipped(method: str) -> Path:
    """This package's folder for a method, which has a folder of parts per model."""
    return Path(str(files("paceline").joinpath("data", method)))


def find_parts(kind: type[PartsT], parts: str, fingerprint: str) -> PartsT:
    """The parts for a model.

    kind: the class of the parts, which names their method.
    parts: a folder, a hub id, or "" for those that come with this package.
    fingerprint: of the model's weights.

    Raises ModelError if they are missing, damaged, of another model, or not made for decoding.
    """
    place = parts or shipped_for(kind.method, fingerprint)
    if place is None:
        raise ModelError(
            f"there are no {kind.kind} for this model: train some with 'paceline train "
            f"{kind.method} --model M' or name a folder with {kind.method}:parts=DIR"
        )
    found = _read(kind, str(place))
    found.check_base(fingerprint)
    return found


def shipped_for(method: str, fingerprint: str) -> Path | None:
    """This package's folder with a method's parts, or its draft model ("draft"), for a model; None
    if there is none."""
    for record in sorted(shipped(method).glob(f"*/{TRAINING}")):
        if read_json(record)["run"]["base"]["fingerprint"] == fingerprint:
            return record.parent
    return None


def shipped_chain(method: str, fingerprint: str) -> float:
    """Right guesses in a chain of the three likeliest ones, as measured with this package's parts
    for a method and model; 0 if there are none, or damaged ones, which are not opened either."""
    try:
        folder = shipped_for(method, fingerprint)
        if folder is None:
            return 0.0
        measured = read_json(folder / TRAINING)["evaluation"]
        if "right_in_a_row" in measured:  # some have four heads, others three
            return float(sum(measured["right_in_a_row"][:3]))
        return float(measured["tokens_per_pass"]) - 1.0
    except (ModelError, KeyError, TypeError, ValueError):
        return 0.0


def _folder(kind: type[TrainedParts[Any]], parts: str) -> Path | None:
    """The folder, or None if `parts` names a hub repository."""
    place = os.path.expanduser(parts)  # `Path.expanduser` fails for an unknown user
    if os.path.isdir(place):  # `Path.is_dir` fails for a name that is too long
        return Path(place)
    owner, slash, name = parts.partition("/")
    if slash and owner not in ("", ".", "..", "~") and name and "/" not in name:
        return None
    raise ModelError(f"there is no folder {parts} with {kind.kind}: check the path")


def _read(kind: type[PartsT], parts: str) -> PartsT:
    folder = _folder(kind, parts) or _downloaded(kind.kind, parts)
    paths = [folder / name for name in FILES]
    changed = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
    once: Any = _read_once  # a class is hashable, which the type checker doubts
    return cast(PartsT, once(kind, folder, changed))


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


# Every drafter of a batch asks for the same ones: one look at the hub is enough.
@lru_cache(maxsize=8)
def _downloaded(kind: str, repo: str) -> Path:
    """The folder in the hub's cache, fetched if missing."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # base classes of the hub's own errors
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"there is no folder {repo}, and the hub's {kind} of that name cannot be "
            f"fetched: {reason}"
        ) from error
