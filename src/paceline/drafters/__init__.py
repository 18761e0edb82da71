"""One small file per method, each named as its paper names it.

A drafter is added by writing its file and one line in `METHODS`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from paceline.drafters.anpd import Anpd
from paceline.drafters.llma import Llma
from paceline.drafters.plain import Plain
from paceline.drafters.pld import PromptLookup
from paceline.drafters.settings import build, parse_method
from paceline.errors import UsageError
from paceline.protocols import Drafter

__all__ = ["METHODS", "Anpd", "Llma", "Plain", "PromptLookup", "make_drafter"]

METHODS: dict[str, type[Drafter]] = {
    "plain": Plain,
    "anpd": Anpd,
    "llma": Llma,
    "pld": PromptLookup,
}


def make_drafter(method: str, **settings: Any) -> Drafter:
    """Construct a drafter by name, settings in the notation or as keywords.

        make_drafter("anpd:n=5,k=7")
        make_drafter("anpd", n=5, k=7)

    Raises UsageError for an unknown method or setting, or a value out of range.
    """
    name, written = parse_method(method)
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"unknown method {name!r}{hint}: use one of {', '.join(METHODS)}")
    return build(METHODS[name], name, {**written, **settings})
