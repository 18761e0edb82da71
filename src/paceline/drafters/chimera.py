"""Chimera: a small draft model that sees the whole text (Zeng et al. 2024, arXiv 2402.15758).

An n-gram encoder reads the tokens that the target has not read yet, a full context encoder attends
from there to the target's own hidden states, and residual heads guess (see
`paceline.drafters.chimera_model`). Each head is asked after the `beam` likeliest guesses of the one
before, so a tree grows level by level, as long as that pays.

    text … a, root b       head 0 after b: c (0.6), d (0.3), e (0.05)
    beam 2                 head 1 after c: f (0.5), …; after d: f (0.2), …
    tree: root ─┬─ c ─ f   the likeliest paths of all, as many as the budget allows
                └─ d
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.drafters.chimera_levels import encoded, levels_of
from paceline.drafters.host import Host
from paceline.drafters.level_drafter import LevelDrafter
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.ngram_cache import Encode, Ngram, NgramCache, State
from paceline.drafters.parts import find_parts
from paceline.drafters.settings import whole
from paceline.drafters.trained_heads import ChimeraParts


@dataclass(frozen=True)
class ChimeraSettings(BeamSettings):
    """Settings of `Chimera`, and those of `BeamSettings`.

    depth: at most one level per head.
    cache: n-grams whose states are kept in memory, 0 for none (section 4.1.1). On a CPU, where a
    draft is one call, only those of prompts: encoding guesses is faster than looking them up.
    dictionary: number of common n-grams whose states are made beforehand, if the parts name any.
    spill: a file for the last 65,536 states evicted from memory, which other parts may share; ""
    discards them. Drafters of a host share the store.
    """

    kind = ChimeraParts

    cache: int = whole(8192, 0)
    dictionary: int = whole(0, 0)
    spill: str = ""


class Chimera(LevelDrafter):
    """Drafter with a trained draft model on the target's states.

    host: the model it was trained for, which must expose its hidden states.

    Raises UsageError for a setting out of range or an unusable file; ModelError for parts that are
    missing, damaged or of another model.
    """

    def __init__(self, host: Host, settings: ChimeraSettings | None = None, **changes: Any) -> None:
        own = replace(settings or ChimeraSettings(), **changes)
        found = find_parts(ChimeraParts, own.parts, host.fingerprint)
        self._model = model = found.open(host, own.weights)
        self.promise = found.promise
        encode: Encode = partial(encoded, model)

        def made_beforehand() -> dict[Ngram, State]:
            ngrams = [tuple(ids) for ids in found.common_ngrams(own.dictionary)]
            return dict(zip(ngrams, encode(ngrams), strict=True)) if ngrams else {}

        def store() -> NgramCache:
            beforehand = host.share((NgramCache, id(model), own.dictionary), made_beforehand)
            if not own.spill:
                return NgramCache(encode, own.cache, beforehand)
            encoder = f"{found.fingerprint()} {own.weights}"  # rounded weights make other states
            place = Path(os.path.expanduser(own.spill))  # `Path`'s own fails for an unknown user
            return NgramCache(encode, own.cache, beforehand, place, encoder)

        # States encoded for one text serve the next ones, and those beside it.
        key = (NgramCache, id(model), own.cache, own.dictionary, own.spill)
        self._greens: NgramCache = host.learn(key, store)
        new_levels = partial(levels_of, model, own, self._greens)
        super().__init__(host, model, own, new_levels, found.config.heads)
