"""Trained parts that another training starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.training.method import Finished, TrainedMethod
from paceline.training.settings import PACKAGED, TrainerSettings

__all__ = ["check_start", "first_parts", "parts_in"]


def first_parts(kind: type[TrainedMethod[Any]], start: str, fingerprint: str) -> Finished | None:
    """What the settings' `start` names for the model with these weights; None if it is "".

    Raises UsageError if there are no parts of this kind, ModelError if they are damaged or another
    model's.
    """
    if not start:
        return None
    folder = kind.packaged(fingerprint) if start == PACKAGED else Path(start)
    if folder is None:
        raise UsageError(
            f"no parts of '{kind.name}' for this model come with paceline: leave out --start"
        )
    found = parts_in(kind, folder)
    found.check_base(fingerprint)
    return found


def parts_in(kind: type[TrainedMethod[Any]], folder: Path) -> Finished:
    """The parts in a folder; raises UsageError if there are none, ModelError if they are
    damaged."""
    found = kind.finished().found_in(folder)
    if found is None:
        raise UsageError(
            f"{folder} holds nothing that 'paceline train {kind.name}' has finished: name another "
            "folder, or leave out --start"
        )
    return found


def check_start(first: Finished, settings: TrainerSettings) -> None:
    """Raises UsageError if these parts guess another number of tokens, were trained on texts that
    the settings hold back, or were chosen by texts of the test split."""
    tokens, count = first.token_ids, settings.vocabulary
    if tokens is not None and len(tokens) != count:
        raise UsageError(
            f"the parts to start from guess {len(tokens)} tokens, not {count or 'all'}: train with "
            f"--vocabulary {len(tokens)}"
        )
    known = first.record.get("run", {}).get("settings", {})
    test, validation = known.get("test"), known.get("validation")
    if test is None or validation is None:
        return
    # Both splits are counted from the same end.
    if settings.test > test or settings.test + settings.validation > test + validation + 1e-9:
        raise UsageError(
            "the parts to start from have learned from texts that are to be held back: train with "
            f"--test {test} --validation {validation}"
        )
