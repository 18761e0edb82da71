"""EAGLE: a draft model of one block that continues from the target's own features (Li et al. 2024
and 2025, arXiv 2401.15077, 2406.16858, 2503.01840).

The block reads the feature of a token and the token chosen after it, and guesses the next one; from
there on its own output replaces the feature (see `paceline.drafters.eagle_model`). So a tree grows
level by level, from the `beam` likeliest nodes of the last by the product of probabilities along
the path; the likeliest of all nodes make the tree (EAGLE-2, section 4).

    text … a, root b       after b: c (0.6), d (0.3), e (0.05)
    beam 2                 after c: f (0.5), …; after d: f (0.2), …
    tree: root ─┬─ c ─ f   the likeliest paths of all, as many as the budget allows
                └─ d

Depth is decided as for a draft model (`paceline.planning.draft_length`): another level is grown
while the chance that one of the continued nodes is right is worth its measured time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paceline.drafters.eagle_levels import levels_of
from paceline.drafters.host import Host
from paceline.drafters.level_drafter import LevelDrafter
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.parts import find_parts
from paceline.drafters.settings import whole
from paceline.drafters.trained_heads import EagleParts
from paceline.planning.draft_length import LONGEST
from paceline.protocols import LAYER_OUTPUTS


@dataclass(frozen=True)
class EagleSettings(BeamSettings):
    """Settings of `Eagle`: those of `BeamSettings`, with a depth of at most 32."""

    kind = EagleParts

    depth: int = whole(0, 0, LONGEST)


class Eagle(LevelDrafter):
    """Drafter with a trained block on the target's features.

    host: the model it was trained for, which must expose its hidden states.

    Raises UsageError for a setting out of range; ModelError for parts that are missing, damaged or
    of another model.
    """

    def __init__(self, host: Host, settings: EagleSettings | None = None, **changes: Any) -> None:
        own = replace(settings or EagleSettings(), **changes)
        found = find_parts(EagleParts, own.parts, host.fingerprint)
        self._model = found.open(host, own.weights)
        super().__init__(host, self._model, own, partial(levels_of, self._model, own))
        self.promise = found.promise
        if found.config.layers:
            self.layers = found.config.layers
            self.requires |= {LAYER_OUTPUTS}
