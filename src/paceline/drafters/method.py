"""What a method is: a name, its settings, and how to build its drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.drafters.host import Host
from paceline.drafters.settings import read_settings
from paceline.errors import UsageError
from paceline.protocols import Drafter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["MethodSpec", "NoSettings", "Tried"]

S = TypeVar("S", bound="DataclassInstance")

Tried = Mapping[tuple[str, ...], tuple[Any, ...]]
"""Names of settings -> values worth trying for speed; all settings of a key share one value."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of a method that takes none."""


@dataclass(frozen=True)
class MethodSpec(Generic[S]):
    """A row of the table of methods.

    settings: a frozen dataclass with a default for every field. Its `__post_init__` raises
    UsageError for values out of range, where it can tell without a model.
    build: makes the drafter of a method that works on any target.
    build_for: the same for a method that was trained for a model, needs another one, or shares what
    it learns with other texts of a session; it gets the model as a host. If there is none, a method
    with both uses `build`.
    source_for: like `build_for`, if another drafter takes its place as a source of `auto`.
    tried: what `paceline tune` tries.
    survey: the drafter is a `Ppd`, which shapes its trees beforehand.

    Raises UsageError for a row with neither `build` nor `build_for`.
    """

    name: str
    settings: type[S]
    build: Callable[[S], Drafter] | None = None
    build_for: Callable[[Host, S], Drafter] | None = None
    source_for: Callable[[Host, S], Drafter] | None = None
    tried: Tried = field(default_factory=dict)
    survey: bool = False

    def __post_init__(self) -> None:
        if self.build is None and self.build_for is None:
            raise UsageError(f"method {self.name!r} needs build or build_for: give one")

    @property
    def defaults(self) -> dict[str, Any]:
        """All settings, with their defaults."""
        return {each.name: each.default for each in fields(self.settings)}

    def read(self, written: Mapping[str, Any]) -> S:
        """Make the settings, with strings parsed as the fields' types.

        Raises UsageError for a setting that is unknown, cannot be read or is out of range.
        """
        try:
            return self.settings(**read_settings(self.settings, self.name, written))
        except UsageError:
            raise
        except (NameError, TypeError, ValueError) as error:  # as classes from outside raise
            raise UsageError(f"method {self.name} cannot take these settings: {error}") from error

    def make(self, settings: S, host: Host | None, as_source: bool = False) -> Drafter:
        """The drafter, or what takes its place as a source of `auto`. Raises UsageError if it needs
        a host and there is none; ModelError if it does not fit its host."""
        if as_source and self.source_for is not None and host is not None:
            return self.source_for(host, settings)
        if self.build_for is not None and host is not None:
            return self.build_for(host, settings)
        if self.build is None:
            raise UsageError(f"method {self.name!r} works only for a given model: pass its host")
        return self.build(settings)
