"""What a model writes where a constraint leaves it a few choices."""

from __future__ import annotations

__all__ = ["FEW", "Habits"]

FEW = 256
"""If more tokens are allowed, what was drawn last time says little."""

_MOST = 4096
_FIRST, _STEP, _LEAST = 0.5, 0.5, 0.05


class Habits:
    """Knows which token was drawn where the same were allowed, in all texts of a session.

    Such places are alike: a model that breaks the line after one brace does so after the next. So
    its way of writing JSON is known after a few lines, and guessed in the next text.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, float]] = {}

    def learn(self, place: int, token: int) -> None:
        """Record a drawn token. place: a hash of what was allowed."""
        known, sure = self._known.pop(place, (token, _FIRST))
        right = known == token
        sure += (_STEP if right else -_STEP) * ((1 - sure) if right else sure)
        self._known[place] = (token, max(_LEAST, sure))
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def recall(self, place: int) -> tuple[int, float] | None:
        """The token drawn last, with a confidence in (0, 1); None for a place never seen."""
        return self._known.get(place)
