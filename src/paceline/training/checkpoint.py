"""Checkpoints of a training: the latest one is complete whenever the process is killed.

`checkpoint.json` names the tensor file and its sha256, and is replaced after that file is
written. Tensor files it does not name are left over from a kill; the next checkpoint removes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from paceline.errors import UsageError
from paceline.json_files import parse_json
from paceline.training.folder import check_same_run, write_file

_INDEX = "checkpoint.json"
_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A training at some step.

    tensors, numbers: of the trainer, see `Trainer.state`. run: what is trained. log: losses so far.
    """

    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Any]
    run: Mapping[str, Any]
    log: list[dict[str, Any]]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the latest checkpoint; raises UsageError if it cannot be written."""
    content = save({name: part.contiguous().cpu() for name, part in checkpoint.tensors.items()})
    name = f"checkpoint-{checkpoint.numbers['step']:06d}.safetensors"
    write_file(folder / name, content)
    index: dict[str, Any] = {
        "format": _FORMAT,
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "numbers": dict(checkpoint.numbers),
        "run": dict(checkpoint.run),
        "log": checkpoint.log,
    }
    index["index_sha256"] = _hash(index)
    write_file(folder / _INDEX, (json.dumps(index, indent=2) + "\n").encode())
    _remove(folder, keep=name)


def load_checkpoint(folder: Path, run: Mapping[str, Any]) -> Checkpoint | None:
    """Load the latest checkpoint of this run, None if there is none. Raises UsageError, naming the
    file, if it is damaged, and for one of another run."""
    path, advice = folder / _INDEX, f"delete {folder / _INDEX} to train from the beginning"
    try:
        index = parse_json(path.read_text(encoding="utf-8"))
        if index["format"] != _FORMAT:
            raise ValueError("it has another format")
        if index.pop("index_sha256") != _hash(index):
            raise ValueError("its sha256 does not match")
        path = folder / index["file"]
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != index["sha256"]:
            raise ValueError("its sha256 does not match")
        found = Checkpoint(load(content), dict(index["numbers"]), dict(index["run"]), index["log"])
    except (FileNotFoundError, NotADirectoryError):
        if path.name == _INDEX:
            return None
        raise UsageError(f"the checkpoint {path} is missing: {advice}") from None
    except OSError as error:
        raise UsageError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UsageError(f"the checkpoint {path} is damaged ({error}): {advice}") from error
    check_same_run(folder, found.run, run, "a checkpoint of a training")
    return found


def forget_checkpoint(folder: Path) -> None:
    """Remove all checkpoint files."""
    (folder / _INDEX).unlink(missing_ok=True)
    _remove(folder, keep="")


def _hash(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _remove(folder: Path, keep: str) -> None:
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != keep:
            old.unlink(missing_ok=True)
