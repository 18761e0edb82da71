"""Small files, JSON most of them, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from paceline.errors import ModelError

__all__ = ["json_bytes", "read_json", "replace_file"]


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON object as it stands in a file."""
    return (json.dumps(dict(content), ensure_ascii=False, indent=2) + "\n").encode()


def replace_file(path: Path, content: bytes, draft: Path | None = None) -> None:
    """Write a file so that it is there whole or not at all, whenever the process is killed and
    whoever else writes it. Raises OSError.

    draft: where it is written first and stays if the process is killed meanwhile; by default a file
    that nobody else writes.
    """
    draft = draft or path.with_name(f".{uuid4().hex}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # it is there only where something went wrong
            draft.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises ModelError, naming the file, where it cannot be read or is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged: it is no JSON object") from error
