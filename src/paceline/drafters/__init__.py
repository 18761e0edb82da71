"""One small file per method, each named as its paper names it.

A drafter is added by writing its file and one line in `METHODS`. One that was trained for a model
takes that as its first argument, named `host`; its `check` says what is wrong with its settings
before there is a model.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any, Protocol, cast

from paceline.drafters.anpd import Anpd
from paceline.drafters.chimera import Chimera
from paceline.drafters.host import Host
from paceline.drafters.jacobi import Jacobi
from paceline.drafters.llma import Llma
from paceline.drafters.medusa import Medusa
from paceline.drafters.lookahead import Lookahead
from paceline.drafters.phrases import PhrasePool
from paceline.drafters.plain import Plain
from paceline.drafters.pld import PromptLookup
from paceline.drafters.ppd import Ppd
from paceline.drafters.settings import HOST, parse_method, read_settings
from paceline.errors import UsageError
from paceline.protocols import Drafter

__all__ = [
    "METHODS",
    "Anpd",
    "Chimera",
    "Host",
    "Jacobi",
    "Llma",
    "Medusa",
    "Lookahead",
    "PhrasePool",
    "Plain",
    "Ppd",
    "PromptLookup",
    "check_method",
    "make_drafter",
    "needs_host",
]


class _Trained(Protocol):
    """The class of a drafter that works for one model only."""

    def __call__(self, host: Host, **settings: Any) -> Drafter: ...

    def check(self, **settings: Any) -> None: ...


METHODS: dict[str, type[Drafter]] = {
    "plain": Plain,
    "anpd": Anpd,
    "llma": Llma,
    "pld": PromptLookup,
    "ppd": Ppd,
    "medusa": Medusa,
    "chimera": Chimera,
    "lookahead": Lookahead,
    "jacobi": Jacobi,
}


def make_drafter(method: str, host: Host | None = None, **settings: Any) -> Drafter:
    """Construct a drafter by name, settings in the notation or as keywords.

        make_drafter("anpd:n=5,k=7")
        make_drafter("anpd", n=5, k=7)
        make_drafter("ppd:size=20", host=Host(target, fingerprint))

    Raises UsageError for an unknown method or setting, a value out of range, or a method that needs
    a host and got none; ModelError for one that does not fit its host.
    """
    kind, values = _read(method, settings)
    if not _takes_host(kind):
        return kind(**values)
    if host is None:
        raise UsageError(f"method {method!r} works for one model only: name its host")
    return cast(_Trained, kind)(host, **values)


def check_method(method: str, **settings: Any) -> None:
    """Raises what `make_drafter` would raise, as far as that can be told without a model."""
    kind, values = _read(method, settings)
    if _takes_host(kind):
        cast(_Trained, kind).check(**values)
    else:
        kind(**values)


def needs_host(method: str) -> bool:
    """Whether the drafter works for one model only. Raises UsageError for an unknown method."""
    return _takes_host(_read(method, {})[0])


def _read(method: str, settings: dict[str, Any]) -> tuple[type[Drafter], dict[str, Any]]:
    name, written = parse_method(method)
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"unknown method {name!r}{hint}: use one of {', '.join(METHODS)}")
    kind = METHODS[name]
    return kind, read_settings(kind, name, {**written, **settings})


def _takes_host(kind: type[Drafter]) -> bool:
    return HOST in inspect.signature(kind).parameters
