"""What a user may set per request, and what becomes of it in the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from paceline.errors import UsageError
from paceline.sampling import LogitsProcessor, Sampler
from paceline.typical import Typical, check_typical

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Settings of one generation. The default is greedy decoding of up to 256 tokens.

    max_new_tokens: at least 1; the model's context limits it further.
    temperature … processors: see `Sampler`.
    stop: strings that end the text and are not part of it.
    ignore_eos: go on past end-of-sequence tokens.
    budget: most nodes a drafter may propose per round; 0 is plain decoding. None is the session's,
    which by default are as many as pay, see docs/planning.md.
    typical: lossy: accept guesses that are likely enough, see `Typical`; True for its defaults.
    record: add the answer to the session's datastore, where it has one.

    Raises UsageError for values out of range.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    stop: Sequence[str] = ()
    processors: tuple[LogitsProcessor, ...] = ()
    ignore_eos: bool = False
    budget: int | None = None
    typical: Typical | bool = False
    record: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.budget is not None and self.budget < 0:
            raise UsageError(f"budget must be at least 0, got {self.budget}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise UsageError("a stop string is empty: leave it out or write at least one character")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "processors", tuple(self.processors))
        sampler = self.sampler()
        if self.acceptance is not None:
            check_typical(sampler)

    def with_(self, **changes: Any) -> Options:
        """A copy with changes; raises UsageError for a name that is not a setting."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise UsageError(f"unknown option {name!r}{hint}; there are: {', '.join(known)}")
        return replace(self, **changes)

    @property
    def acceptance(self) -> Typical | None:
        """Which guesses are accepted though plain decoding would say something else; None for none,
        which is lossless."""
        return Typical() if self.typical is True else self.typical or None

    def sampler(self) -> Sampler:
        """The sampler that these options describe."""
        return Sampler(
            seed=self.seed,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            processors=self.processors,
        )
