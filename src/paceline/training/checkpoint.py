"""Checkpoints of a training: the latest one is complete whenever the process is killed.

`checkpoint.json` names the tensor file and its sha256, and is replaced after that file is
written. Tensor files it does not name are left over from a kill; the next checkpoint removes them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from paceline.errors import UsageError
from paceline.json_files import CHECKPOINT, parse_json
from paceline.training.folder import check_same_run, read_checked, undamaged, write_file

_NAME = re.compile(r"checkpoint-\d{6,}\.safetensors")
_FORMAT = 1


def save_checkpoint(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
    run: Mapping[str, Any],
) -> None:
    """Replace the latest checkpoint; raises UsageError if it cannot be written.

    tensors, values: of the trainer, see `Trainer.state`. run: what is trained.
    """
    content = save({name: part.contiguous().cpu() for name, part in tensors.items()})
    name = f"checkpoint-{values['numbers']['step']:06d}.safetensors"
    write_file(folder / name, content)
    index: dict[str, Any] = {
        "format": _FORMAT,
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        **values,
        "run": dict(run),
    }
    index["index_sha256"] = _hash(index)
    write_file(folder / CHECKPOINT, (json.dumps(index, indent=2) + "\n").encode())
    _remove(folder, keep=name)


def load_checkpoint(
    folder: Path, run: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Load the latest checkpoint of this run, see `Trainer.state`; None if there is none. Raises
    UsageError, naming the file, if it is damaged, and for one of another run."""
    path, advice = folder / CHECKPOINT, f"delete {folder / CHECKPOINT} to train from the beginning"
    with undamaged(f"the checkpoint {path}", advice):
        if not path.exists():
            return None
        index = parse_json(path.read_text(encoding="utf-8"))
        if index["format"] != _FORMAT:
            raise ValueError("it has another format")
        if index.pop("index_sha256") != _hash(index):
            raise ValueError("its sha256 does not match")
        values, found = {name: index[name] for name in ("numbers", "log")}, dict(index["run"])
        path = folder / index["file"]
    if not path.exists():
        raise UsageError(f"the checkpoint {path} is missing: {advice}")
    with undamaged(f"the checkpoint {path}", advice):
        tensors = load(read_checked(path, index["sha256"]))
    check_same_run(folder, found, run, "a checkpoint of a training")
    return tensors, values


def forget_checkpoint(folder: Path) -> None:
    """Remove all checkpoint files."""
    (folder / CHECKPOINT).unlink(missing_ok=True)
    _remove(folder, keep="")


def _hash(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _remove(folder: Path, keep: str) -> None:
    for old in folder.glob("checkpoint-*.safetensors"):
        if _NAME.fullmatch(old.name) and old.name != keep:
            old.unlink(missing_ok=True)
