"""What `paceline tune` does for one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.tables import Table

if TYPE_CHECKING:
    from paceline.prompts import PromptRecord
    from paceline.session import Session

__all__ = ["Study"]


class Study(Protocol):
    """What is looked for, for one method."""

    @property
    def decodes(self) -> bool:
        """Whether it needs prompts."""
        ...

    def run(
        self,
        session: Session,
        prompts: list[PromptRecord],
        options: dict[str, Any],
        repeats: int | None,
    ) -> None:
        """Look for it; repeats: trials per text, None for as many as are usual."""
        ...

    def table(self) -> Table:
        """What was tried."""
        ...

    def lines(self) -> list[str]:
        """What comes of it."""
        ...

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        ...

    def save_plots(self, folder: Path) -> None:
        """Raises UsageError where they cannot be drawn or written."""
        ...
