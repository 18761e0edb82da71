"""The parts of an earlier training from which another starts."""

from __future__ import annotations

from pathlib import Path

from paceline.drafters.parts import shipped_for
from paceline.errors import UsageError
from paceline.training.method import Finished, method_of
from paceline.training.settings import PACKAGED, TrainerSettings


def parts_in(folder: Path, settings: TrainerSettings) -> Finished:
    """The parts in a folder; raises UsageError if there are none, ModelError if damaged."""
    found = method_of(settings).Parts.found_in(folder)
    if found is None:
        raise UsageError(
            f"{folder} holds nothing that 'paceline train {settings.name}' has finished: name "
            "another folder, or leave out --start"
        )
    return found


def first_parts(settings: TrainerSettings, fingerprint: str) -> Finished | None:
    """What the settings' `start` names for the model with these weights; None if it is "".

    Raises UsageError if there are no such parts, or they guess another number of tokens, are of
    another kind, were trained on texts that the settings hold back, or were chosen by texts of the
    test split; ModelError for damaged or another model's.
    """
    if not settings.start:
        return None
    packaged = settings.start == PACKAGED
    folder = shipped_for(settings.name, fingerprint) if packaged else Path(settings.start)
    if folder is None:
        raise UsageError(
            f"no parts of '{settings.name}' for this model come with paceline: leave out --start"
        )
    found = parts_in(folder, settings)
    found.check_base(fingerprint)
    _check_options(found, settings)
    return found


def _check_options(parts: Finished, settings: TrainerSettings) -> None:
    """See `first_parts`."""
    if parts.token_ids is not None and len(parts.token_ids) != settings.vocabulary:
        count = len(parts.token_ids)
        raise UsageError(
            f"the parts to start from guess {count} tokens, not "
            f"{settings.vocabulary or 'all'}: train with --vocabulary {count}"
        )
    known = parts.record.get("run", {}).get("settings", {})
    for name in sorted({*settings.what_is_trained} - settings.may_differ):
        if name in known and known[name] != getattr(settings, name):
            raise UsageError(
                f"the parts to start from have {name} {known[name]!r}, not "
                f"{getattr(settings, name)!r}: train with the options in their training.json"
            )
    test, validation = known.get("test"), known.get("validation")
    if test is None or validation is None:
        return
    # Both splits are counted from the same end.
    if settings.test > test or settings.test + settings.validation > test + validation + 1e-9:
        raise UsageError(
            "the parts to start from have learned from texts that are to be held back: train "
            f"with --test {test} --validation {validation}"
        )
