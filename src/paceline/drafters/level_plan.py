"""How many levels trees get: another one while it is worth its time."""

from __future__ import annotations

from collections.abc import Hashable

from paceline.chains import ChainEnd, certain_end
from paceline.drafters.host import Host
from paceline.planning.draft_length import LONGEST, DraftLength
from paceline.records import Round
from paceline.tree import EMPTY, Tree

__all__ = ["LevelPlan"]


class LevelPlan:
    """Plans the rounds of one drafter, one after the other.

    length: what is known about the time and gain of levels, shared by drafters of `host` with the
    same `key`; None if there are always `depth` levels, 1 or more. most: most levels.
    """

    def __init__(self, host: Host, key: Hashable, depth: int, most: int = LONGEST) -> None:
        self._clock, self._depth = host.clock, min(depth, most)
        self.length: DraftLength | None = None
        if not depth:
            self.length = host.learn(
                (DraftLength, key), lambda: DraftLength(host.curve, most, host.costs)
            )
        self.begin_text()

    def begin_text(self) -> None:
        """Begin a text, or resume it with other last tokens."""
        # When this round's draft was requested, its levels begun and finished, in seconds.
        self._asked: float | None = None
        self._began = self._given = 0.0
        self._tree = EMPTY

    def begin(self) -> None:
        """A draft is wanted or, if called again, what precedes its levels is done."""
        self._began = self._clock()
        if self._asked is None:
            self._asked = self._began

    def end(self) -> ChainEnd:
        """Where no more levels are wanted, by the chance that a continued node is right."""
        if self.length is None:
            return certain_end(0.0, self._depth)
        return self.length.end((), worth=self.length.worth)

    def grown(self, tree: Tree, levels: int) -> Tree:
        """Record that this tree took `levels` levels; returns it."""
        self._tree, self._given = tree, self._clock()
        if self.length is not None:
            self.length.drafted(1e3 * (self._given - self._began) / levels, 1)
        return tree

    def observe(self, round: Round, context: int) -> None:
        """Learn what another level is worth. context: tokens in the cache."""
        asked, self._asked = self._asked, None
        if asked is None or self.length is None:
            return
        said, claims = round.path.tokens, _claims_by_level(self._tree)
        self.length.judge(claims[: len(said)], len(self._tree.along(said)))
        self.length.scored(len(claims), min(len(claims), max(round.tree.depths, default=0)))
        if not round.prefill:
            now = self._clock()
            spent = 1e3 * (now - self._given), 1e3 * (now - asked)
            self.length.played(*spent, len(said), context)


def _claims_by_level(tree: Tree) -> list[float]:
    """By depth, the chance that one of its nodes is right if one of the depth before is."""
    sure = [0.0] * max(tree.depths, default=0)
    for depth, path_chance in zip(tree.depths, tree.weights or (), strict=True):
        sure[depth - 1] += path_chance
    before = [1.0, *sure]
    return [each / above if above else 0.0 for each, above in zip(sure, before)]
