"""The lines of a result file, one per trial."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from operator import index
from types import NoneType
from typing import Any

from paceline.drafters.settings import parse_method
from paceline.stats import SourceStats, Stats

MOST = 10**15
"""No number of a result is larger, unless its file is damaged."""
_TOKENS = 2**31

Key = tuple[str, str, int]
"""Suite, prompt and turn: one text."""

PARTS = ("prefill", "draft", "target", "commit")
"""What the time of a trial is spent on."""

_KINDS: dict[Any, Any] = {
    "str": str,
    "int": int,
    "int | None": (int, NoneType),
    "float": (int, float),
    "float | None": (int, float, NoneType),
}


@dataclass(frozen=True)
class Difference:
    """The first position where an output differs from plain decoding's.

    logit_gap: the target's logit of plain's token minus that of the method's, both scored by a
    one-token pass; None if one of the outputs ended there.
    """

    position: int
    plain_token: int | None
    method_token: int | None
    logit_gap: float | None


@dataclass(frozen=True)
class _OfText:
    """What is known of one text."""

    suite: str
    task: str
    prompt: str
    turn: int

    @property
    def key(self) -> Key:
        """Which text."""
        return self.suite, self.prompt, self.turn


@dataclass(frozen=True)
class LeftOut(_OfText):
    """A text that was not run, and why."""

    reason: str


@dataclass(frozen=True)
class Entry(_OfText):
    """One trial of one method on one text.

    turn, repeat: counted from 0.
    stats: includes the trial's times by part, in seconds; `seconds` is the total.
    peak_bytes: memory of the process or on the GPU, see `MemoryUse`; None if unknown.
    output: the tokens, None if they equal those of plain decoding's first trial, which always has
    its own.
    lossy: see `Trial`; such an output is not compared with plain decoding's.
    error: what went wrong, or "".
    group: the prompt that the text shares with others of its suite; "" if with none.
    """

    repeat: int
    method: str
    prompt_tokens: int
    tokens: int = 0
    seconds: float = 0.0
    stats: Stats = field(default_factory=Stats)
    peak_bytes: int | None = None
    loop_share: float = 0.0
    output: tuple[int, ...] | None = None
    difference: Difference | None = None
    lossy: bool = False
    error: str = ""
    group: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry as a record, without what is missing or can be derived."""
        record = {name: value for name, value in vars(self).items() if value is not None}
        for name in ("lossy", "error", "group"):
            if not record[name]:
                del record[name]
        record["stats"] = _stats_as_json(self.stats)
        if self.output is not None:
            record["output"] = list(self.output)
        if self.difference is not None:
            record["difference"] = asdict(self.difference)
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Entry:
        """Read such a record back. Raises KeyError, TypeError or ValueError for any other."""
        values = dict(record)
        values["stats"] = _stats_from_json(record["stats"], record.get("tokens", 0))
        if "output" in record:
            values["output"] = tuple(map(index, record["output"]))
        if "difference" in record:
            values["difference"] = Difference(**record["difference"])
        return cls(**values)


def seconds_by_part(stats: Stats) -> dict[str, float]:
    """The time of each of `PARTS`."""
    return {part: getattr(stats, f"{part}_seconds") for part in PARTS}


def _stats_as_json(stats: Stats) -> dict[str, Any]:
    sources = {name: asdict(source) for name, source in stats.sources.items()}
    return {
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance": {str(key): n for key, n in sorted(stats.acceptance_histogram.items())},
        "depths": {str(key): n for key, n in sorted(stats.depth_histogram.items())},
        "seconds": seconds_by_part(stats),
        **({"sources": sources} if sources else {}),
    }


def _stats_from_json(record: dict[str, Any], tokens: int) -> Stats:
    return Stats(
        rounds=record["rounds"],
        tokens=tokens,
        drafted=record["drafted"],
        accepted=record["accepted"],
        acceptance_histogram=_counter(record["acceptance"], 1),
        depth_histogram=_counter(record["depths"], 0),
        **{f"{part}_seconds": record["seconds"][part] for part in PARTS},
        sources={name: SourceStats(**source) for name, source in record.get("sources", {}).items()},
    )


def _counter(record: dict[str, Any], least: int) -> Counter[int]:
    """Counts by a number that is at least this."""
    found = Counter({int(key): index(times) for key, times in record.items()})
    if not all(least <= key <= MOST and 0 <= times <= MOST for key, times in found.items()):
        raise ValueError("its counts are out of range")
    return found


def parse_line(record: dict[str, Any]) -> Entry | LeftOut:
    """Parse a line after the first. Raises what `Entry.from_json` does."""
    if "reason" in record:
        left_out = LeftOut(**record)
        _check(left_out)
        return left_out
    entry = Entry.from_json(record)
    parse_method(entry.method)  # as a report will
    for part in (entry, entry.stats, *entry.stats.sources.values(), entry.difference):
        if part is not None:
            _check(part)
    if not entry.error and not (entry.tokens > 0 < entry.seconds):
        raise ValueError("it has no tokens or no time")
    if not all(0 <= token < _TOKENS for token in entry.output or ()):
        raise ValueError("its tokens are out of range")
    return entry


def _check(part: Any) -> None:
    """Raises TypeError for a value of another kind than its field, and ValueError for a number
    out of range."""
    for each in fields(part):
        value, kind = getattr(part, each.name), _KINDS.get(each.type)
        if kind is not None and not isinstance(value, kind):
            raise TypeError(f"{each.name} is {value!r}")
        # Logits, and so gaps, may be infinite.
        free = isinstance(part, Difference) and isinstance(value, float)
        if isinstance(value, int | float) and not (free or abs(value) <= MOST):
            raise ValueError(f"{each.name} is out of range")
