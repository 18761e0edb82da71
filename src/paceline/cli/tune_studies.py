"""What `paceline tune` tries for a method: which of its settings, or of PPD's trees, pay on this
machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from paceline.bench.entries import Entry
from paceline.cli.bench.shared import Tryout
from paceline.cli.findings import Findings
from paceline.drafters import make_drafter, open_settings, with_settings
from paceline.drafters.ppd import Ppd
from paceline.errors import UsageError, writable
from paceline.planning.ppd.tree_picture import survey_figure, tree_figure, tree_text
from paceline.planning.ppd.tree_search import FittedTree
from paceline.planning.settings_search import Settings, Step, Trial, search
from paceline.tables import Table

_REPEATS_OF_SETTINGS, _REPEATS_OF_TREES = 2, 7
# Most nodes of a tree, in every round. A planner would switch off drafts that do not pay, and all
# settings would be as fast as plain decoding.
_BUDGET = 64
_AROUND = 2  # widths on either side of the predicted optimum that are measured
_ANY_WIDTH = 1024  # most nodes then


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
        found = Findings(
            tryout.of(names, _BUDGET, tryout.repeats or _REPEATS_OF_SETTINGS, "trying")
        )
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


@dataclass
class TreeStudy:
    """What trees of a trained drafter promise by width, and what they gain.

    verify: whether some are measured.
    measured: width -> decoding speed-ups over plain, one per repetition; acceptance_length: width
    -> tokens gained per pass in these.
    """

    method: str
    verify: bool = False
    survey: list[FittedTree] = field(default_factory=list)
    measured: dict[int, list[float]] = field(default_factory=dict)
    acceptance_length: dict[int, float] = field(default_factory=dict)

    def run(self, tryout: Tryout) -> None:
        """Search; raises ModelError if nothing was trained for the model."""
        drafter = make_drafter(self.method, tryout.session.host)
        assert isinstance(drafter, Ppd)  # noqa: S101 - it was told by its survey
        self.survey = drafter.survey()
        if self.verify:
            self._verify(tryout)

    @property
    def best(self) -> FittedTree:
        """The width that promises most, even if that is no gain."""
        return max(self.survey, key=lambda one: one.speedup)

    @property
    def best_measured(self) -> int | None:
        """The width that gained most, None if none was measured."""
        return max(self.measured, key=lambda width: median(self.measured[width]), default=None)

    def table(self) -> Table:
        """One row per width."""
        headings = ["rows", "tokens per pass", "ms", "speed-up"]
        headings += ["measured", "tokens per pass"] if self.measured else []
        rows = []
        for one in self.survey:
            mark = " *" if one is self.best else ""
            row = [f"{one.width}{mark}", f"{one.tree.tokens_per_pass:.2f}"]
            row += [f"{one.milliseconds:.2f}", f"{one.speedup:.2f}x"]
            if found := self.measured.get(one.width):
                row += [f"{median(found):.2f}x", f"{self.acceptance_length[one.width]:.2f}"]
            rows.append(row + [""] * (len(headings) - len(row)))
        return Table(f"{self.method}: expected gain by width", headings, rows, left=0)

    def lines(self) -> list[str]:
        """The most promising tree as a picture, and the verdict."""
        gain = f"a tree of {self.best.width} rows promises {self.best.speedup:.2f}x"
        if self.best.speedup <= 1:
            gain += ": guessing does not pay off here, so planned requests use plain decoding"
        found = self.best_measured
        if found is not None:
            gain += f"; of those measured, {found} rows gained most"
        return [tree_text(self.best.tree), gain]

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        widths = [
            {
                "width": one.width,
                "tokens_per_pass": one.tree.tokens_per_pass,
                "milliseconds": one.milliseconds,
                "speedup": one.speedup,
                "measured": self.measured.get(one.width),
                "measured_tokens_per_pass": self.acceptance_length.get(one.width),
            }
            for one in self.survey
        ]
        found = {"best": self.best.width, "best_measured": self.best_measured, "widths": widths}
        return {"trees": {"method": self.method, **found}}

    def save_plots(self, folder: Path) -> None:
        """`survey.png` and `tree.png`; raises UsageError if they cannot be drawn or written."""
        figures = {
            "survey.png": survey_figure(self.survey, self.measured),
            "tree.png": tree_figure(self.best.tree),
        }
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, figure in figures.items():
                figure.savefig(folder / name, dpi=120)

    def _verify(self, tryout: Tryout) -> None:
        """Decode with trees around the optimum and plainly, in turns."""
        place = self.survey.index(self.best)
        near = self.survey[max(place - _AROUND, 0) : place + _AROUND + 1]
        # The survey's trees are those of the shape "table".
        shown = {"size": 0, "shape": "table"}
        names = {
            with_settings(self.method, shown | {"width": one.width}): one.width for one in near
        }
        repeats = tryout.repeats or _REPEATS_OF_TREES
        found = tryout.of(names, _ANY_WIDTH, repeats, "verifying")
        for repeat in range(repeats):
            lines = [line for line in found if not isinstance(line, Entry) or line.repeat == repeat]
            for method in Findings(lines).methods:
                if method.method in names and method.decode_speedup is not None:
                    width = names[method.method]
                    self.measured.setdefault(width, []).append(method.decode_speedup)
                    self.acceptance_length[width] = method.stats.mean_acceptance_length
