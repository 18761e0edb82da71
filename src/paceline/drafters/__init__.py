"""One small file per method, each named as in its paper.

To add a drafter, write its file, with a dataclass of its settings, and add a row to `_ROWS`.
Methods of other packages are found by the location of their class or by entry points, see
`paceline.drafters.registry`.
"""

from __future__ import annotations

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
from paceline.drafters.ouroboros import Ouroboros, OuroborosSettings
from paceline.drafters.phrases import PhrasePool
from paceline.drafters.plain import Plain
from paceline.drafters.pld import PromptLookup, PromptLookupSettings
from paceline.drafters.ppd import Ppd, PpdSettings
from paceline.drafters.ppd_source import PpdSource
from paceline.drafters.registry import (
    METHODS,
    MethodSpec,
    NoSettings,
    add_draft,
    check_method,
    make_drafter,
    method_named,
    open_settings,
    shapes_trees,
    with_settings,
)
from paceline.drafters.rest import Rest, RestSettings
from paceline.drafters.sam import Sam, SamSettings
from paceline.drafters.speculative import Speculative, SpeculativeSettings
from paceline.drafters.suffix import Suffix, SuffixSettings

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
        # The paper has one number for window and guesses, and tunes gamma, W, phrase length and K
        # in this order (table 11). Its windows, meant for GPUs, have 13 to 20 columns.
        tried={
            ("length",): (0, 2, 4, 6, 9, 12),
            ("window", "guesses"): (3, 7, 12, 16),
            ("level",): (3, 4, 5, 7),
            ("lengthen",): (0, 1, 3, 5),
            ("inner",): ("plain", "phrases", "anpd"),
        },
    ),
)

METHODS.update({row.name: row for row in _ROWS})
