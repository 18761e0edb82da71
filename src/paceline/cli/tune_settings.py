"""`paceline tune --method ouroboros`: which settings pay on this machine, and whether they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.cli.bench.shared import Tryout
from paceline.cli.findings import Findings
from paceline.drafters import open_settings, with_settings
from paceline.errors import UsageError
from paceline.planning.settings_search import Settings, Step, Trial, search
from paceline.tables import Table

_REPEATS = 2
# Most nodes of a tree, in every round. A planner would switch off drafts that do not pay, and all
# settings would be as fast as plain decoding.
_BUDGET = 64


@dataclass
class SettingsStudy:
    """What values of a method's settings gain on prompts, one setting after the other.

    steps: setting by setting. last: the original settings and the best ones, once more side by
    side, since the best of many trials was also the luckiest.
    """

    method: str
    steps: list[Step] = field(default_factory=list)
    last: list[Trial] = field(default_factory=list)

    def run(self, tryout: Tryout) -> None:
        """Search; raises UsageError if a method finishes no prompt."""
        start, tried = open_settings(self.method)
        measure = partial(self._measure, tryout)
        for step in search(tried, start, measure):
            self.steps.append(step)
        if not self.steps:
            raise UsageError(f"{self.method} has no setting with several values to try")
        best = self.steps[-1].best.settings
        self.last = measure([start] if best == start else [start, best])

    @property
    def best(self) -> Trial:
        """The faster of the original settings and those found."""
        return max(self.last, key=lambda trial: trial.speedup)

    def table(self) -> Table:
        """One row per trial, with its settings."""
        title = f"{self.method}: gain by setting"
        columns = list(self.steps[0].best.settings)
        tried = [
            [", ".join(step.names), *_cells(trial, columns, " *" if trial is step.best else "")]
            for step in self.steps
            for trial in step.trials
        ]
        again = [["again", *_cells(trial, columns, "")] for trial in self.last]
        headings = ["tried", *columns, "tokens per pass", "speed-up"]
        return Table(title, headings, [*tried, *again])

    def lines(self) -> list[str]:
        """The method with the best settings, and the verdict."""
        best = self.best
        verdict = (
            f"best of those tried: {best.speedup:.2f}x plain decoding after the prompt, "
            f"{best.tokens_per_pass:.2f} tokens per pass"
        )
        if best.speedup <= 1:
            verdict += ": guessing does not pay off here, so planned requests use plain decoding"
        different = sum(trial.different for step in self.steps for trial in step.trials)
        texts = [f"{different} texts differed from plain decoding's"] if different else []
        return [f"--method {self._named(best.settings)}", verdict, *texts]

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        steps = [
            {
                "settings": step.names,
                "trials": [self._record(trial) for trial in step.trials],
                "best": dict(step.best.settings),
            }
            for step in self.steps
        ]
        last = [self._record(trial) for trial in self.last]
        best = self._named(self.best.settings)
        return {"settings": {"method": self.method, "best": best, "steps": steps, "last": last}}

    def _named(self, settings: Settings) -> str:
        """The method with the settings that differ from its own."""
        start, _ = open_settings(self.method)
        other = {name: value for name, value in settings.items() if value != start[name]}
        return with_settings(self.method, other)

    def _record(self, trial: Trial) -> dict[str, Any]:
        return {"method": self._named(trial.settings), **vars(trial)}

    def _measure(self, tryout: Tryout, candidates: Sequence[Settings]) -> list[Trial]:
        """Decode with all of these and plainly, in turns."""
        names = [self._named(settings) for settings in candidates]
        found = Findings(tryout.of(names, _BUDGET, tryout.repeats or _REPEATS, "trying"))
        methods = {one.method: one for one in found.methods}
        trials = []
        for name, settings in zip(names, candidates):
            one = methods.get(name)
            if one is None:
                reasons = [why for (method, _), why in found.failures.items() if method == name]
                raise UsageError(f"{name} failed on every prompt: {reasons[0]}")
            speedup = one.decode_speedup or one.speedup
            length = one.stats.mean_acceptance_length
            trials.append(Trial(settings, speedup, length, len(one.differences)))
        return trials


def _cells(trial: Trial, names: Sequence[str], mark: str) -> list[str]:
    values = [str(trial.settings[name]).lower() for name in names]
    return [*values, f"{trial.tokens_per_pass:.2f}", f"{trial.speedup:.2f}x{mark}"]
