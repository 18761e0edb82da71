"""One small file per method, each named as its paper names it.

A drafter is added by writing its file, with a dataclass of its settings, and one row in `METHODS`.
Methods of other packages are found by the place of their class or by entry points, see
`paceline.drafters.outside`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from paceline.drafters.anpd import Anpd, AnpdSettings
from paceline.drafters.auto import Auto
from paceline.drafters.auto_sources import AutoSettings
from paceline.drafters.chimera import Chimera, ChimeraSettings
from paceline.drafters.eagle import Eagle, EagleSettings
from paceline.drafters.host import Host, ModelChoice, Opener
from paceline.drafters.jacobi import Jacobi, JacobiSettings
from paceline.drafters.llma import Llma, LlmaSettings
from paceline.drafters.lookahead import Lookahead, LookaheadSettings
from paceline.drafters.medusa import Medusa, MedusaSettings
from paceline.drafters.method import MethodSpec, NoSettings
from paceline.drafters.ouroboros import Ouroboros, OuroborosSettings
from paceline.drafters.outside import found_outside, outside_names
from paceline.drafters.phrases import PhrasePool
from paceline.drafters.plain import Plain
from paceline.drafters.pld import PromptLookup, PromptLookupSettings
from paceline.drafters.ppd import Ppd, PpdSettings
from paceline.drafters.ppd_source import PpdSource
from paceline.drafters.rest import Rest, RestSettings
from paceline.drafters.sam import Sam, SamSettings
from paceline.drafters.settings import bracketed, parse_method
from paceline.drafters.speculative import Speculative, SpeculativeSettings
from paceline.drafters.suffix import Suffix, SuffixSettings
from paceline.errors import UsageError
from paceline.protocols import Drafter

__all__ = [
    "METHODS",
    "Anpd",
    "AnpdSettings",
    "Auto",
    "AutoSettings",
    "Chimera",
    "ChimeraSettings",
    "Eagle",
    "EagleSettings",
    "Host",
    "Jacobi",
    "JacobiSettings",
    "Llma",
    "LlmaSettings",
    "Lookahead",
    "LookaheadSettings",
    "Medusa",
    "MedusaSettings",
    "MethodSpec",
    "ModelChoice",
    "NoSettings",
    "Opener",
    "Ouroboros",
    "OuroborosSettings",
    "PhrasePool",
    "Plain",
    "Ppd",
    "PpdSettings",
    "PromptLookup",
    "PromptLookupSettings",
    "Rest",
    "RestSettings",
    "Sam",
    "SamSettings",
    "Speculative",
    "SpeculativeSettings",
    "Suffix",
    "SuffixSettings",
    "add_draft",
    "check_method",
    "make_drafter",
    "method_named",
    "needs_host",
    "open_settings",
    "shapes_trees",
    "with_settings",
]

_ROWS: tuple[MethodSpec[Any], ...] = (
    MethodSpec("plain", NoSettings, lambda settings: Plain()),
    MethodSpec("auto", AutoSettings, lambda settings: Auto.on(None, settings), build_for=Auto.on),
    MethodSpec("anpd", AnpdSettings, Anpd, build_for=Anpd.on),
    MethodSpec("llma", LlmaSettings, Llma),
    MethodSpec("pld", PromptLookupSettings, PromptLookup),
    MethodSpec("suffix", SuffixSettings, Suffix, build_for=Suffix.on),
    MethodSpec("sam", SamSettings, Sam, build_for=Sam.on),
    MethodSpec("rest", RestSettings, Rest, build_for=Rest.on),
    MethodSpec("ppd", PpdSettings, build_for=Ppd, source_for=PpdSource, survey=True),
    MethodSpec("medusa", MedusaSettings, build_for=Medusa),
    MethodSpec("chimera", ChimeraSettings, build_for=Chimera),
    MethodSpec("eagle", EagleSettings, build_for=Eagle),
    MethodSpec(
        "lookahead",
        LookaheadSettings,
        Lookahead,
        tried={("window", "guesses"): (3, 7, 10, 15), ("level",): (3, 4, 5, 7)},
    ),
    MethodSpec("jacobi", JacobiSettings, Jacobi),
    MethodSpec(
        "speculative",
        SpeculativeSettings,
        build_for=Speculative,
        tried={
            ("length",): (0, 1, 2, 4, 6, 9),
            ("branches",): (0, 1, 2),
            ("confidence",): (0.0, 0.2, 0.4),
        },
    ),
    MethodSpec(
        "ouroboros",
        OuroborosSettings,
        build_for=Ouroboros,
        # The paper has one number for window and guesses, and looks at gamma, W, the length of
        # phrases and K in this order (table 11); its windows have 13 to 20 columns, for GPUs.
        tried={
            ("length",): (0, 2, 4, 6, 9, 12),
            ("window", "guesses"): (3, 7, 12, 16),
            ("level",): (3, 4, 5, 7),
            ("lengthen",): (0, 1, 3, 5),
            ("drafting",): (True, False),
        },
    ),
)

METHODS: dict[str, MethodSpec[Any]] = {row.name: row for row in _ROWS}
"""All methods of this package, by name."""

_DRAFT = "draft"


def make_drafter(method: str, host: Host | None = None, **settings: Any) -> Drafter:
    """Construct a drafter by name, settings in the notation or as keywords.

        make_drafter("anpd:n=5,k=7")
        make_drafter("anpd", n=5, k=7)
        make_drafter("ppd:size=20", host=Host(target, fingerprint))
        make_drafter("package.module:Class:n=5")

    Raises UsageError for an unknown method or setting, a value out of range, or a method that needs
    a host and got none; ModelError for one that does not fit its host.
    """
    name, written = parse_method(method)
    found = method_named(name)
    return found.make(found.read({**written, **settings}), host)


def check_method(method: str, **settings: Any) -> None:
    """Raises what `make_drafter` would raise, as far as that can be told without a model."""
    name, written = parse_method(method)
    method_named(name).read({**written, **settings})


def method_named(name: str) -> MethodSpec[Any]:
    """The method of that name, without settings: of this package, or from outside.

    Raises UsageError where there is none.
    """
    found = METHODS.get(name) or found_outside(name)
    if found is None:
        known = [*METHODS, *outside_names()]
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"unknown method {name!r}{hint}: use one of {', '.join(known)}")
    return found


def needs_host(method: str) -> bool:
    """Whether the drafter works for one model only. Raises UsageError for an unknown method."""
    return method_named(parse_method(method)[0]).needs_host


def add_draft(method: str, draft: str) -> str | None:
    """The method with its draft model named, None for one that takes none.

    Raises UsageError for an unknown method, or one that names its draft model already.
    """
    name, written = parse_method(method)
    if _DRAFT not in method_named(name).defaults:
        return None
    if _DRAFT in written:
        raise UsageError(f"{method!r} names its draft model already: leave --draft-model out")
    return _written(name, {_DRAFT: draft, **written})


def shapes_trees(method: str) -> bool:
    """Whether the method builds its trees beforehand, from what it was trained to guess right.

    Raises what `check_method` raises.
    """
    check_method(method)
    return method_named(parse_method(method)[0]).survey


def open_settings(method: str) -> tuple[dict[str, Any], dict[tuple[str, ...], tuple[Any, ...]]]:
    """Settings that are worth trying, as far as the method leaves them open: their values as they
    are, and the values to try; all settings of a key have one value in common. Both empty for a
    method that has none.

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
