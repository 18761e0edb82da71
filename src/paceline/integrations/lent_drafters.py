"""Drafters that keep learning from one call of `generate` to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.integrations.known_model import KnownModel
from paceline.protocols import Drafter

__all__ = ["LentDrafters"]


class LentDrafters:
    """Lends each drafter to one call at a time, so that threads may share a `Pace`.

    make: makes a drafter; the first is made at once, so that its errors come early.

    A drafter that has read texts of one model is not lent for another, whose vocabulary may lack
    the tokens it would guess.
    """

    def __init__(self, make: Callable[[], Drafter]) -> None:
        self._make = make
        self._idle: list[tuple[KnownModel | None, Drafter]] = [(None, make())]

    @contextmanager
    def lend(self, known: KnownModel) -> Iterator[Drafter]:
        """A drafter for a text of this model, within the context; the one last used if idle. After
        an error it is not lent again: it may be the cause."""
        drafter, at_fault = self._take(known), False
        try:
            yield drafter
        except Exception:
            at_fault = True
            raise
        finally:
            if not at_fault:
                self._idle.append((known, drafter))

    def _take(self, known: KnownModel) -> Drafter:
        try:
            # Looking first whether there is one would leave time for another thread to take it.
            met, drafter = self._idle.pop()
        except IndexError:
            return self._make()
        return drafter if met is None or met is known else self._make()

    def __getstate__(self) -> dict[str, Any]:
        # Two copies must not lend the same drafters.
        return {**vars(self), "_idle": []}
