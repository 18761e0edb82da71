"""Methods by name. `paceline.drafters` lists this package's, so that those that draft with another
method can look here. Those of other packages are named by the place of their class or by an entry
point.

    anybody.drafting:Stutter:times=3        the class Stutter of the module anybody.drafting
    stutter:times=3                         a name of the group `paceline.drafters`

Each is a `MethodSpec`, or a subclass of `Drafter` whose settings are its `Settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.drafters.host import Host
from paceline.drafters.settings import bracketed, parse_method, read_settings
from paceline.errors import UsageError, meant
from paceline.protocols import Drafter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    build: makes the drafter of a method that works on any target. build_for: the same for a method
    that was trained for a model, needs another one, or shares what it learns in a session; it gets
    the model as a host. Without one, a method with both uses `build`. source_for: like `build_for`,
    if another drafter takes its place as a source of `auto`.
    tried: what `paceline tune` tries. survey: the drafter is a `Ppd`, which shapes its trees
    beforehand.

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
        """Make the settings, with strings parsed as the fields' types. Raises UsageError for a
        setting that is unknown, cannot be read or is out of range."""
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


METHODS: dict[str, MethodSpec[Any]] = {}
"""All methods of this package, by name: the rows in `paceline.drafters`."""

_DRAFT = "draft"

_GROUP = "paceline.drafters"  # entry points of this group are methods, by their names


def make_drafter(method: str, host: Host | None = None, **settings: Any) -> Drafter:
    """Construct a drafter by name, with settings in the notation or as keywords.

        make_drafter("anpd:n=5,k=7")
        make_drafter("anpd", n=5, k=7)
        make_drafter("ppd:size=20", host=Host(target, fingerprint))
        make_drafter("package.module:Class:n=5")

    Raises UsageError for an unknown method or setting, a value out of range, or a missing host;
    ModelError for a method that does not fit its host.
    """
    name, written = parse_method(method)
    found = method_named(name)
    return found.make(found.read({**written, **settings}), host)


def check_method(method: str, **settings: Any) -> None:
    """Raises what `make_drafter` would raise, where that can be told without a model."""
    if not isinstance(method, str):
        raise UsageError(f"a method is a name, such as 'anpd:n=5', not {method!r}")
    try:
        name, written = parse_method(method)
        method_named(name).read({**written, **settings})
    except RecursionError as error:
        raise UsageError(f"method {method[:40]!r}… is nested too deeply") from error


def method_named(name: str) -> MethodSpec[Any]:
    """The method of that name, without settings: of this package, at this place, or what another
    package has under this name.

    Raises UsageError if there is none, it cannot be imported or is not a method.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return _loaded(name, EntryPoint(name, name, _GROUP))
    outside = {entry.name: entry for entry in reversed(tuple(entry_points(group=_GROUP)))}
    if name in outside:
        return _loaded(name, outside[name])
    known = [*METHODS, *sorted(outside)]
    raise UsageError(f"unknown method {name!r}{meant(name, known)}: use one of {', '.join(known)}")


def add_draft(method: str, draft: str) -> str | None:
    """The method with its draft model named; None for one that takes none.

    Raises UsageError for an unknown method, or one that already names its draft model.
    """
    name, written = parse_method(method)
    if _DRAFT not in method_named(name).defaults:
        return None
    if _DRAFT in written:
        raise UsageError(f"{method!r} already names its draft model: leave out --draft-model")
    return _written(name, {_DRAFT: draft, **written})


def shapes_trees(method: str) -> bool:
    """Whether the method shapes its trees beforehand, by how often its guesses were right.

    Raises what `check_method` raises.
    """
    check_method(method)
    return method_named(parse_method(method)[0]).survey


def open_settings(method: str) -> tuple[dict[str, Any], Tried]:
    """Settings worth trying that the method leaves open: their defaults, and the values to try. Both
    are empty for a method without any.

    Raises what `check_method` raises.
    """
    check_method(method)
    name, written = parse_method(method)
    found = method_named(name)
    tried = {
        tuple(one for one in names if one not in written): values
        for names, values in found.tried.items()
    }
    tried.pop((), None)
    defaults = found.defaults
    return {one: defaults[one] for names in tried for one in names}, tried


def with_settings(method: str, settings: Mapping[str, Any]) -> str:
    """The method with these settings in place of its own; unchanged if there are none."""
    name, written = parse_method(method)
    return _written(name, {**written, **settings}) if settings else method


def _written(name: str, settings: Mapping[str, Any]) -> str:
    """A method in the notation."""
    texts = (
        f"{key}={bracketed(str(value).lower() if isinstance(value, bool) else str(value))}"
        for key, value in settings.items()
    )
    return f"{name}:{','.join(texts)}"


def _loaded(name: str, entry: EntryPoint) -> MethodSpec[Any]:
    where = f"method {name!r}" if entry.value == name else f"method {name!r} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # importing a module may raise anything
        raise UsageError(
            f"cannot load {where}: {type(error).__name__}: {error}; check that the package is "
            "installed and that the names of the module and the class are right"
        ) from error
    if isinstance(found, MethodSpec):
        return replace(found, name=name)
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise UsageError(
            f"{where} is neither a subclass of paceline.protocols.Drafter nor a MethodSpec: name "
            "one that is"
        )
    if isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UsageError(f"{where} does not define {missing}: a drafter must define all of them")
    settings = found.Settings or NoSettings
    if not is_dataclass(settings):
        raise UsageError(
            f"the Settings of {where} are not a dataclass: decorate them with @dataclass"
        )
    names = [each.name for each in fields(settings) if each.init]
    return MethodSpec(
        name, settings, build=lambda own: found(**{n: getattr(own, n) for n in names})
    )
