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
    """A search for what pays, for one method."""

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
        """Search; repeats: trials per text, None for the usual number."""
        ...

    def table(self) -> Table:
        """What was tried."""
        ...

    def lines(self) -> list[str]:
        """The conclusions."""
        ...

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        ...

    def save_plots(self, folder: Path) -> None:
        """Raises UsageError if they cannot be drawn or written."""
        ...
