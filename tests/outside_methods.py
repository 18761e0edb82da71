"""Methods as another package would bring them, good ones and bad ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.drafters import Host, MethodSpec, Plain
from paceline.drafters.settings import at_least
from paceline.protocols import Drafter
from paceline.records import Round, TextStart
from paceline.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class StutterSettings:
    times: int = 1
    quiet: bool = False

    def __post_init__(self) -> None:
        at_least(1, times=self.times)


class Stutter(Drafter):
    """The last token, once more."""

    Settings = StutterSettings

    def __init__(self, settings: StutterSettings | None = None, **changes: int) -> None:
        own = replace(settings or StutterSettings(), **changes)
        self.times = 0 if own.quiet else own.times
        self.last = 0

    def start(self, text: TextStart) -> None:
        self.last = text.context[-1]

    def propose(self, budget: int) -> Tree:
        return Tree.chain([self.last] * min(self.times, max(0, budget)))

    def observe(self, round: Round) -> None:
        self.last = round.path.tokens[-1]


class Nested(Stutter):
    """Has its settings inside."""

    @dataclass(frozen=True)
    class Settings:
        times: int | None = None
        words: tuple[str, ...] = ()

    def __init__(self, times: int | None, words: tuple[str, ...]) -> None:
        super().__init__(times=3 if times is None else times)


class Quiet(Plain):
    """Takes no settings."""


class Loose(Plain):
    class Settings:
        times = 1


class Hidden(Plain):
    """Has a type that only type checkers know."""

    @dataclass(frozen=True)
    class Settings:
        words: Sequence[str] = ()


class Required(Plain):
    """Has a setting without a default, and a check that does not know paceline's errors."""

    @dataclass(frozen=True)
    class Settings:
        times: int

        def __post_init__(self) -> None:
            if self.times < 1:
                raise ValueError("times must be positive")


class Half(Drafter):
    def start(self, text: TextStart) -> None: ...


class Attached(Stutter):
    def __init__(self, host: Host, settings: StutterSettings) -> None:
        super().__init__(settings)
        self.host = host


STUTTER = MethodSpec("stutter", StutterSettings, Stutter, tried={("times",): (1, 2)})
ATTACHED = MethodSpec("attached", StutterSettings, build_for=Attached)
NUMBER = 7
