"""One small file per method, each named as its paper names it.

A drafter is added by writing its file and one line in `METHODS`. One that was trained for a model,
or needs another one, takes its own as the first argument, named `host`; its `check` says what is
wrong with its settings before there is a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Protocol, cast

from paceline.drafters.anpd import Anpd
from paceline.drafters.chimera import Chimera
from paceline.drafters.host import Host, ModelChoice, Opener
from paceline.drafters.jacobi import Jacobi
from paceline.drafters.llma import Llma
from paceline.drafters.lookahead import Lookahead
from paceline.drafters.medusa import Medusa
from paceline.drafters.ouroboros import Ouroboros
from paceline.drafters.phrases import PhrasePool
from paceline.drafters.plain import Plain
from paceline.drafters.pld import PromptLookup
from paceline.drafters.ppd import Ppd
from paceline.drafters.settings import HOST, bracketed, parse_method, read_settings
from paceline.drafters.speculative import Speculative
from paceline.errors import UsageError
from paceline.protocols import Drafter

__all__ = [
    "METHODS",
    "Anpd",
    "Chimera",
    "Host",
    "Jacobi",
    "Llma",
    "Lookahead",
    "Medusa",
    "ModelChoice",
    "Opener",
    "Ouroboros",
    "PhrasePool",
    "Plain",
    "Ppd",
    "PromptLookup",
    "Speculative",
    "add_draft",
    "check_method",
    "make_drafter",
    "needs_host",
    "open_settings",
    "shapes_trees",
    "with_settings",
]


class _Hosted(Protocol):
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
    "speculative": Speculative,
    "ouroboros": Ouroboros,
}

_DRAFT = "draft"


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
    return cast(_Hosted, kind)(host, **values)


def check_method(method: str, **settings: Any) -> None:
    """Raises what `make_drafter` would raise, as far as that can be told without a model."""
    kind, values = _read(method, settings)
    if _takes_host(kind):
        cast(_Hosted, kind).check(**values)
    else:
        kind(**values)


def needs_host(method: str) -> bool:
    """Whether the drafter works for one model only. Raises UsageError for an unknown method."""
    return _takes_host(_read(method, {})[0])


def add_draft(method: str, draft: str) -> str | None:
    """The method with its draft model named, None for one that takes none.

    Raises UsageError for an unknown method, or one that names its draft model already.
    """
    name, written = parse_method(method)
    if _DRAFT not in inspect.signature(_kind(name)).parameters:
        return None
    if _DRAFT in written:
        raise UsageError(f"{method!r} names its draft model already: leave --draft-model out")
    return _written(name, {_DRAFT: draft, **written})


def shapes_trees(method: str) -> bool:
    """Whether the method builds its trees beforehand, from what it was trained to guess right.

    Raises what `check_method` raises.
    """
    check_method(method)
    return hasattr(_kind(parse_method(method)[0]), "survey")


def open_settings(method: str) -> tuple[dict[str, Any], dict[tuple[str, ...], tuple[Any, ...]]]:
    """Settings that are worth trying, as far as the method leaves them open: their values as they
    are, and the values to try; all settings of a key have one value in common. Both empty for a
    method that has none.

    Raises what `check_method` raises.
    """
    check_method(method)
    name, written = parse_method(method)
    kind = _kind(name)
    tried = {
        tuple(one for one in names if one not in written): values
        for names, values in getattr(kind, "tried", {}).items()
    }
    tried.pop((), None)
    defaults = inspect.signature(kind).parameters
    return {one: defaults[one].default for names in tried for one in names}, tried


def with_settings(method: str, settings: Mapping[str, Any]) -> str:
    """The method with these settings in place of its own; as it is where there are none."""
    name, written = parse_method(method)
    return _written(name, {**written, **settings}) if settings else method


def _written(name: str, settings: Mapping[str, Any]) -> str:
    """A method in the notation."""
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }
    return f"{name}:{','.join(f'{key}={bracketed(text)}' for key, text in texts.items())}"


def _read(method: str, settings: dict[str, Any]) -> tuple[type[Drafter], dict[str, Any]]:
    name, written = parse_method(method)
    kind = _kind(name)
    return kind, read_settings(kind, name, {**written, **settings})


def _kind(name: str) -> type[Drafter]:
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"unknown method {name!r}{hint}: use one of {', '.join(METHODS)}")
    return METHODS[name]


def _takes_host(kind: type[Drafter]) -> bool:
    return HOST in inspect.signature(kind).parameters
