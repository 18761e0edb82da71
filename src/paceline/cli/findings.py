"""The results of a comparison, for its tables and its JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import typer

from paceline.bench.entries import Difference, Entry, Key, LeftOut, seconds_by_part
from paceline.bench.metrics import MethodSummary, Summary, summarise
from paceline.bench.report.tables import hit_ratio, sources
from paceline.cli import common
from paceline.errors import UsageError
from paceline.tables import Columns, Table

_OVERALL: Columns[MethodSummary] = {
    "method": lambda one: one.method,
    "tokens/s": lambda one: f"{one.tokens_per_second:.1f}",
    "speed-up": lambda one: f"{one.speedup:.2f}x",
    "tokens per round": lambda one: f"{one.stats.mean_acceptance_length:.2f}",
    "drafts accepted": hit_ratio,
}
_OF_TRACES: Columns[tuple[str, MethodSummary]] = {
    "trace": lambda row: row[0],
    "method": lambda row: row[1].method,
    "tokens/s": lambda row: f"{row[1].tokens_per_second:.1f}",
    "speed-up": lambda row: f"{row[1].speedup:.2f}x",
    "95 % interval": lambda row: row[1].sure,
    "acceptance length": lambda row: f"{row[1].stats.mean_acceptance_length:.2f}",
    "draft hit ratio": lambda row: hit_ratio(row[1]),
}


@dataclass(frozen=True)
class Findings:
    """The lines of a comparison, with texts under the names that users know.

    Raises UsageError if plain decoding did not finish a single text.
    """

    lines: list[Entry | LeftOut]

    def __post_init__(self) -> None:
        played = any(isinstance(line, Entry) for line in self.lines)
        if not (played and self.methods):
            reason = [*self.left_out, *self.failures.values()][0]
            raise UsageError(f"there is nothing to compare: {reason}")

    @cached_property
    def summary(self) -> Summary:
        """See `summarise`."""
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
        return [
            f"{self.labels[line.key]} was left out: {line.reason}"
            for line in self.lines
            if isinstance(line, LeftOut)
        ]

    @cached_property
    def failures(self) -> dict[tuple[str, str], str]:
        """Method and text -> what went wrong."""
        return {
            (line.method, self.labels[line.key]): line.error
            for line in self.lines
            if isinstance(line, Entry) and line.error
        }

    def differences(self, method: MethodSummary) -> list[tuple[str, Difference]]:
        """Where its outputs differ from plain decoding's, every place once."""
        return [(self.labels[key], place) for key, place in method.places]

    def show(self, by_prompt: bool) -> None:
        """Print tables of methods, sources and perhaps prompts, and all that went wrong."""
        columns = {**_OVERALL, "identical": self._identical}
        common.print_table(Table.of("all prompts together", columns, self.methods))
        by_source = sources("all prompts", self.summary)
        if by_source.rows:
            common.print_table(by_source)
        if by_prompt:
            common.print_table(self._prompt_table())
        self._print_mismatches()
        self.note_exceptions()

    def show_traces(self) -> None:
        """Print a table by trace, and all that went wrong."""
        by_task, overall = self.summary.groups, self.summary.overall
        groups = by_task if len(by_task) == 1 else [*by_task, overall]
        rows = [(group.name, method) for group in groups for method in group.methods.values()]
        common.print_table(Table.of("", _OF_TRACES, rows, left=2))
        self.note_exceptions()

    def note_exceptions(self) -> None:
        """Say what was left out, and what failed."""
        for sentence in self.left_out:
            common.note(sentence)
        for (method, label), error in self.failures.items():
            common.note(f"error: {method} failed on {label}: {error}", style="red")

    def exit_if_failed(self) -> None:
        """End the command with exit code 1 if a method failed on a text."""
        if self.failures:
            raise typer.Exit(1)

    def as_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        return {
            "methods": [self._as_json(method) for method in self.methods],
            "left_out": self.left_out,
            "failures": [
                {"method": method, "prompt": label, "error": error}
                for (method, label), error in self.failures.items()
            ],
        }

    def _identical(self, method: MethodSummary) -> str:
        if method.lossy:
            return "lossy"
        return "yes" if method.identical else f"no ({len(method.places)})"

    def _prompt_table(self) -> Table:
        rows = []
        for key, label in self.labels.items():
            speedups = [method.speedups.get(key) for method in self.methods]
            if any(speedups):
                cells = ("-" if each is None else f"{each:.2f}x" for each in speedups)
                rows.append([label, *cells])
        names = [method.method for method in self.methods]
        return Table("speed-up by prompt", ["prompt", *names], rows)

    def _print_mismatches(self) -> None:
        lines = []
        for method in self.methods:
            for label, place in self.differences(method):
                gap = "-" if place.logit_gap is None else f"{place.logit_gap:.2e}"
                lines.append(
                    f"{method.method} differs on {label} at token {place.position}: "
                    f"{place.method_token} instead of {place.plain_token}, logit gap {gap}"
                )
        common.print_lines(lines, "yellow")

    def _as_json(self, method: MethodSummary) -> dict[str, Any]:
        """One record, ready for `json.dumps`."""
        stats, different = method.stats, self.differences(method)
        gains = stats.acceptance_histogram  # empty if other software does not report them
        return {
            "method": method.method,
            "tokens": method.tokens,
            "seconds": method.seconds,
            "tokens_per_second": method.tokens_per_second,
            "speedup": method.speedup,
            "interval": method.interval if method.prompts > 1 else None,
            "decode_speedup": method.decode_speedup,
            "speedup_per_prompt": {self.labels[key]: each for key, each in method.speedups.items()},
            "mean_acceptance_length": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_by_position": stats.acceptance_by_position if gains else None,
            "acceptance_histogram": dict(sorted(gains.items())),
            "seconds_by_part": seconds_by_part(stats),
            "sources": {name: asdict(source) for name, source in stats.sources.items()},
            "lossy": method.lossy,
            "identical": method.identical,
            "mismatches": [{"prompt": label} | asdict(place) for label, place in different],
        }
