"""`paceline tune --method ppd`: which tree pays on this machine, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from paceline.bench.entries import Entry
from paceline.cli.bench.shared import Tryout
from paceline.cli.findings import Findings
from paceline.drafters import make_drafter, with_settings
from paceline.drafters.ppd import Ppd
from paceline.errors import writable
from paceline.planning.ppd.tree_picture import survey_figure, tree_figure, tree_text
from paceline.planning.ppd.tree_search import FittedTree
from paceline.tables import Table

_AROUND = 2  # widths on either side of the predicted optimum that are measured
_UNBOUNDED = 1024  # so that a tree of any width fits
_REPEATS = 7


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
        repeats = tryout.repeats or _REPEATS
        found = tryout.of(names, _UNBOUNDED, repeats, "verifying")
        for repeat in range(repeats):
            lines = [line for line in found if not isinstance(line, Entry) or line.repeat == repeat]
            for method in Findings(lines).methods:
                if method.method in names and method.decode_speedup is not None:
                    width = names[method.method]
                    self.measured.setdefault(width, []).append(method.decode_speedup)
                    self.acceptance_length[width] = method.stats.mean_acceptance_length
