"""The results of a comparison, for its tables and its JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.cli import common
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.bench.entries import Difference, Entry, Key, LeftOut
    from paceline.bench.metrics import MethodSummary, Summary


@dataclass(frozen=True)
class Findings:
    """The lines of a comparison, with texts under the names that users know; raises UsageError if
    plain decoding did not finish a single text."""

    lines: list[Entry | LeftOut]

    def __post_init__(self) -> None:
        from paceline.bench.entries import Entry

        played = any(isinstance(line, Entry) for line in self.lines)
        if not (played and self.methods):
            reason = [*self.left_out, *self.failures.values()][0]
            raise UsageError(f"there is nothing to compare: {reason}")

    @cached_property
    def summary(self) -> Summary:
        """See `summarise`."""
        from paceline.bench.metrics import summarise

        return summarise(self.lines)

    @property
    def methods(self) -> list[MethodSummary]:
        """Those that finished at least one text, plain decoding first."""
        return list(self.summary.overall.methods.values())

    @cached_property
    def labels(self) -> dict[Key, str]:
        """Names of texts: the prompt's id, with the suite's name if there are several, and with the
        turn's number in a conversation."""
        talks = {line.key[:2] for line in self.lines if line.turn}
        several = len({line.suite for line in self.lines}) > 1
        return {
            line.key: (f"{line.suite}/" if several else "")
            + line.prompt
            + (f"#{line.turn + 1}" if line.key[:2] in talks else "")
            for line in self.lines
        }

    @cached_property
    def left_out(self) -> list[str]:
        """What was not run, and why."""
        from paceline.bench.entries import LeftOut

        return [
            f"{self.labels[line.key]} was left out: {line.reason}"
            for line in self.lines
            if isinstance(line, LeftOut)
        ]

    @cached_property
    def failures(self) -> dict[tuple[str, str], str]:
        """Method and text -> what went wrong."""
        from paceline.bench.entries import Entry

        return {
            (line.method, self.labels[line.key]): line.error
            for line in self.lines
            if isinstance(line, Entry) and line.error
        }

    def differences(self, method: MethodSummary) -> list[tuple[str, Difference]]:
        """Where its outputs differ from plain decoding's, every place once."""
        return [
            (self.labels[key], place)
            for key, places in method.differences.items()
            for place in dict.fromkeys(places)
        ]


def drafts_accepted(method: MethodSummary) -> str:
    """The share of its guesses, as a cell."""
    stats = method.stats
    return f"{stats.draft_acceptance_rate:.0%}" if stats.drafted else "-"


def note_exceptions(found: Findings) -> None:
    """Say what was left out, and what failed."""
    for sentence in found.left_out:
        common.note(sentence)
    for (method, label), error in found.failures.items():
        common.note(f"error: {method} failed on {label}: {error}", style="red")


def method_as_json(found: Findings, method: MethodSummary) -> dict[str, Any]:
    """One record, ready for `json.dumps`."""
    stats, different = method.stats, found.differences(method)
    gains = stats.acceptance_histogram  # empty if other software does not report them
    return {
        "method": method.method,
        "tokens": method.tokens,
        "seconds": method.seconds,
        "tokens_per_second": method.tokens_per_second,
        "speedup": method.speedup,
        "interval": method.interval if method.prompts > 1 else None,
        "decode_speedup": method.decode_speedup,
        "speedup_per_prompt": {found.labels[key]: each for key, each in method.speedups.items()},
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_by_position": stats.acceptance_by_position if gains else None,
        "acceptance_histogram": dict(sorted(gains.items())),
        "seconds_by_part": {
            "prefill": stats.prefill_seconds,
            "draft": stats.draft_seconds,
            "target": stats.target_seconds,
            "commit": stats.commit_seconds,
        },
        "sources": {name: asdict(source) for name, source in stats.sources.items()},
        "lossy": method.lossy,
        "identical": method.identical,
        "mismatches": [{"prompt": label} | asdict(place) for label, place in different],
    }
