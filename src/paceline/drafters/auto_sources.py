"""The sources of `auto`: which are asked by default, and how they are opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.drafters.costly_sources import CostlySources
from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.parts import shipped_chain
from paceline.drafters.registry import check_method, method_named
from paceline.drafters.settings import parse_method, split_at
from paceline.errors import PacelineError, UsageError
from paceline.protocols import Drafter

SOURCES = ("anpd", "suffix", "llma", "rest", "eagle", "medusa", "chimera", "speculative", "ppd")
"""Methods that `auto` asks, if they exist for the model. Costly ones are tried in this order."""

_COPY = "speculative:draft=self"

_TRAINED = ("eagle", "medusa", "chimera")  # methods on the model's states

_BY_MODEL = (*_TRAINED, "speculative", "ppd")
"""Of these the default is the trained method whose first guesses are right longest; without one, a
copy of the model; without that, the package's draft model, or prompt tokens. A weaker source beside
another costs time in every text before it is ruled out: with prompt tokens beside EAGLE, 286 trials
gained 4 of 17,371 tokens."""

_AND = "+"


@dataclass(frozen=True)
class AutoSettings:
    """Settings of `Auto`.

    sources: methods, joined by "+", each with its own settings: "anpd:n=4+medusa"; "" for all that
    exist for the model, see `auto_sources.SOURCES`.
    without: names of methods to leave out, joined by "+"; `auto:-medusa` is short for it.

    Raises what `check_method` raises, and UsageError for a method that cannot be a source or if
    none is left.
    """

    sources: str = ""
    without: str = ""

    def __post_init__(self) -> None:
        chosen_sources(self.sources, self.without)


def chosen_sources(sources: str, without: str) -> dict[str, str]:
    """Name -> method with its settings, as written. sources, without, errors: see
    `AutoSettings`."""
    chosen: dict[str, str] = {}
    for method in filter(None, map(str.strip, split_at(_AND, sources or _AND.join(SOURCES)))):
        name, _ = parse_method(method)
        if name in chosen or name == "auto":
            raise UsageError(f"{name} cannot be a source here: name each method once, and not auto")
        if sources:
            check_method(method)
            free = method_named(name).build_for is None  # no model is needed to tell
            if free and _opened(method, None).sized_by != "nodes":
                raise UsageError(f"{name} cannot be a source of auto: its trees must stay whole")
        chosen[name] = method
    for name in filter(None, map(str.strip, without.split(_AND))):
        if name not in chosen:
            raise UsageError(
                f"auto has no source {name!r} to leave out: choose one of {', '.join(chosen)}"
            )
        del chosen[name]
    if not chosen:
        raise UsageError("auto has no sources left: name some with auto:sources=anpd+llma")
    return chosen


def open_sources(sources: str, without: str, host: Host | None) -> dict[str, Drafter]:
    """The drafters by name. If `sources` is "", those missing for the host are left out; named ones
    must exist. Raises what `make_drafter` raises."""
    chosen = chosen_sources(sources, without)
    if sources:
        return {name: _opened(method, host) for name, method in chosen.items()}
    by_model = _by_model([name for name in _BY_MODEL if name in chosen], host)
    opened = {
        name: by_model.get(name) if name in _BY_MODEL else _found(method, host)
        for name, method in chosen.items()
    }
    return {name: drafter for name, drafter in opened.items() if drafter is not None}


def nothing_known(sources: Mapping[str, Drafter], host: Host | None = None) -> CostlySources:
    """What is known at first about asking sources; the first lookup is always asked."""
    lookups = [name for name, source in sources.items() if isinstance(source, LookupDrafter)]
    costly = [name for name in sources if name not in lookups]
    promises = {name: source.promise for name, source in sources.items()}
    costs, curve = (None, None) if host is None else (host.costs, host.curve)
    return CostlySources(costly, lookups[1:], costs, curve, promises)


def _by_model(names: Sequence[str], host: Host | None) -> dict[str, Drafter]:
    """The defaults among these that exist for the host, by name, see `_BY_MODEL`."""
    if host is None:
        return {}

    def by_chain() -> list[str]:
        trained = [name for name in names if name in _TRAINED]
        return sorted(trained, key=lambda name: -shipped_chain(name, host.fingerprint))

    trained = host.share(("by chain", *names), by_chain)
    copies = [_COPY] if "speculative" in names and host.copies else []
    for method in (*trained, *copies, *(name for name in names if name not in trained)):
        if (drafter := _found(method, host)) is not None:
            return {parse_method(method)[0]: drafter}
    return {}


def _found(method: str, host: Host | None) -> Drafter | None:
    """The drafter, or None if the host has none, which is checked once."""
    if host is not None and host.share(("no source", method), lambda: _missing(method, host)):
        return None
    try:
        return _opened(method, host)
    except PacelineError:
        return None


def _missing(method: str, host: Host) -> bool:
    try:
        return bool(_opened(method, host).requires - host.target.capabilities)
    except PacelineError:
        return True


def _opened(method: str, host: Host | None) -> Drafter:
    name, written = parse_method(method)
    found = method_named(name)
    return found.make(found.read(written), host, as_source=True)
