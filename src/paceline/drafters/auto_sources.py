"""The sources of `auto`: the table of those that are asked by default, and how they are opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.drafters.host import Host
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.parts import shipped_chain
from paceline.drafters.registry import check_method, method_named
from paceline.drafters.settings import parse_method
from paceline.errors import PacelineError, UsageError
from paceline.protocols import Drafter

__all__ = [
    "ALTERNATIVES",
    "SOURCES",
    "AutoSettings",
    "by_price",
    "chosen_sources",
    "open_sources",
    "promises_of",
]

SOURCES = ("anpd", "suffix", "llma", "rest", "eagle", "medusa", "chimera", "speculative", "ppd")
"""Methods that `auto` asks, as far as there are such for the model; of costly ones those that are
tried first stand first."""

ALTERNATIVES = {"speculative": ("speculative:draft=self", "speculative")}
"""Ways to have such a source, of which the first that there is for the model is taken. A copy of the
model is right most often; where it would hardly be smaller than the model, or memory is short, there
is none, and the draft model that comes with the package takes its place."""

_TRAINED = ("eagle", "medusa", "chimera")
"""Methods on the model's states, of which by default the one with the longest right chains is a
source, and the draft model of the package only where there is none: who has less to add takes time
to be found out in every text."""

_PACKAGED = "speculative"

_AND = "+"


@dataclass(frozen=True)
class AutoSettings:
    """Settings of `Auto`.

    sources: methods, joined by "+", each with its own settings: "anpd:n=4+medusa"; "" for all that
    there are for the model, see `auto_sources.SOURCES`.
    without: names of methods that are left out, joined by "+"; `auto:-medusa` is short for it.

    Raises what `check_method` raises, and UsageError for a method that cannot be a source or where
    none is left.
    """

    sources: str = ""
    without: str = ""

    def __post_init__(self) -> None:
        chosen_sources(self.sources, self.without)


def chosen_sources(sources: str, without: str) -> dict[str, str]:
    """Name -> method, in the notation.

    sources, without: see `AutoSettings`.

    Raises what `check_method` raises for a method, and UsageError for one that is named twice, for
    what is no source in `without`, and where nothing is left.
    """
    chosen: dict[str, str] = {}
    for method in filter(None, map(str.strip, (sources or _AND.join(SOURCES)).split(_AND))):
        name, _ = parse_method(method)
        if name in chosen or name == "auto":
            raise UsageError(f"{name} cannot be a source here: name other methods, each once")
        if sources:
            check_method(method)
        chosen[name] = method
    for name in filter(None, map(str.strip, without.split(_AND))):
        if name not in chosen:
            raise UsageError(f"auto has no source {name!r} to go without: {', '.join(chosen)}")
        del chosen[name]
    if not chosen:
        raise UsageError("auto is left without sources: name some with auto:sources=anpd+llma")
    return chosen


def open_sources(sources: str, without: str, host: Host | None) -> dict[str, Drafter]:
    """The drafters by name. Where `sources` is "" those that there are not for the host are left
    out; what was named has to be there.

    Raises what `make_drafter` raises.
    """
    chosen = chosen_sources(sources, without)
    if sources:
        return {name: _opened(method, host) for name, method in chosen.items()}
    opened: dict[str, Drafter] = {}
    trained = _best_trained([name for name in _TRAINED if name in chosen], host)
    for name, method in chosen.items():
        if name in _TRAINED:
            drafter = trained.get(name)
        else:
            ways = ALTERNATIVES.get(name, (method,))
            wanted = (way for way in ways if not (trained and way == _PACKAGED))
            found = (_found(way, host) for way in wanted)
            drafter = next((each for each in found if each is not None), None)
        if drafter is not None:
            opened[name] = drafter
    return opened


def by_price(sources: Mapping[str, Drafter]) -> tuple[list[str], list[str]]:
    """Names of the sources that take time, and of lookups but for the first, which is always asked."""
    lookups = [name for name, source in sources.items() if isinstance(source, LookupDrafter)]
    return [name for name in sources if name not in lookups], lookups[1:]


def promises_of(sources: Mapping[str, Drafter]) -> dict[str, float]:
    """What was measured with their parts, see `Drafter.promise`."""
    return {name: source.promise for name, source in sources.items() if source.promise}


def _best_trained(names: Sequence[str], host: Host | None) -> dict[str, Drafter]:
    """By its name the drafter, of those that there are for the host, whose chains were right longest;
    nothing where there is none."""
    if host is None:
        return {}

    def by_chain() -> list[str]:
        return sorted(names, key=partial(_chain, fingerprint=host.fingerprint), reverse=True)

    for name in host.share(("by chain", *names), by_chain):
        drafter = _found(name, host)
        if drafter is not None:
            return {name: drafter}
    return {}


def _chain(method: str, fingerprint: str) -> float:
    """See `shipped_chain`; damaged parts are no reason to fail: they are not opened either."""
    try:
        return shipped_chain(method, fingerprint)
    except PacelineError:
        return 0.0


def _found(method: str, host: Host | None) -> Drafter | None:
    """The drafter, or None where there is none for the host, which is found out once."""
    try:
        if host is None:
            return _opened(method, None)
        if host.share(("no source", method), lambda: _missing(method, host)):
            return None
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
